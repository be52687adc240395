"""Two exchanges in a chain, in a driver to be killed whole: ``python chain_driver.py '<json>'``.

Keys of the JSON: folder, depth (of sharing), stream (whether the rows come in micro-batches), die
(whether to say where it is and then wait to be killed).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))

import scene
from driver import wait_to_die

import clonos

ROWS = 60
FILES = 3


def main() -> None:
    """Run what the argument says."""
    plan = json.loads(sys.argv[1])
    folder = Path(plan["folder"])
    spark = scene.start("local-cluster[2,1,1024]")
    settings = {"checkpoint_dir": folder / "logs", "sharing_depth": plan["depth"]}
    with clonos.attach(spark, **settings) as session:
        (stream if plan["stream"] else batch)(spark, session, plan)
    (folder / "done").touch()
    spark.stop()


def chain(rows: Any, folder: Path) -> Any:
    """Ask a service about each row, hand that on to who draws, and that to who does nothing."""
    record = str(folder / "calls.txt")

    def asked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids = batch.column("id")
            answers = [clonos.call(scene.ask, record, row) for row in ids.to_pylist()]
            yield pa.RecordBatch.from_arrays([ids, pa.array(answers)], ["id", "v"])

    def drawn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            tokens = [str(clonos.uuid4()) for _ in range(batch.num_rows)]
            yield batch.append_column("token", pa.array(tokens))

    first = clonos.map_in_arrow(rows, asked, "id long, v double", uid="asked")
    second = clonos.map_in_arrow(
        clonos.exchange(first, 3, "id"), drawn, "id long, v double, token string", uid="drawn"
    )
    sent = clonos.exchange(second, 2)
    return clonos.map_in_arrow(sent, lambda batches: batches, second.schema, uid="last")


def batch(spark: Any, session: Any, plan: dict[str, Any]) -> None:
    """The rows of one epoch, seen before the driver dies."""
    folder = Path(plan["folder"])
    with session.epoch("nightly"):
        note(folder, 0, chain(spark.range(0, ROWS, 1, 4), folder).collect())
        if plan["die"]:
            wait_to_die(folder)


def stream(spark: Any, session: Any, plan: dict[str, Any]) -> None:
    """The same by micro-batches."""
    folder = Path(plan["folder"])

    def sink(rows: Any, number: int) -> None:
        note(folder, number, rows.collect())
        if plan["die"] and number == 1:
            wait_to_die(folder)

    lines = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    query = chain(lines.json(str(folder / "in")), folder).writeStream
    query = query.foreachBatch(session.foreach_batch(sink))
    query = query.option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


def note(folder: Path, number: int, rows: list[Any]) -> None:
    """Keep what was seen of an epoch, each time that it was."""
    with (folder / f"seen-{number}.txt").open("a") as file:
        file.write(json.dumps(sorted([row.id, row.v, row.token] for row in rows)) + "\n")


if __name__ == "__main__":
    main()
