"""A driver to be killed whole: ``python driver.py '<json>'``; writes its rows at the end.

Keys of the JSON: kind ("batch" or "stream"), folder, master, partitions, die (whether to say where
it is and then wait to be killed); attach (arguments of attach, unless there is a folder for logs),
pause (seconds that each call takes), again (whether a batch job reads its rows a second time).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import scene

import clonos
from clonos import causal

STREAM_ROWS = 300


def main() -> None:
    """Run what the argument says."""
    plan = json.loads(sys.argv[1])
    spark = scene.start(plan["master"])
    settings = plan.get("attach") or {"checkpoint_dir": Path(plan["folder"]) / "logs"}
    with clonos.attach(spark, **settings) as session:
        (batch if plan["kind"] == "batch" else stream)(spark, session, plan)
    spark.stop()


def score(plan: dict[str, Any]) -> Any:
    """The function under test; the same code in every driver."""
    record = str(Path(plan["folder"]) / "calls.txt")
    pause = plan.get("pause", 0.0)

    @causal("double", uid="score")
    def score_of(row: int) -> float:
        time.sleep(pause)
        return scene.ask(record, row)

    return score_of


def batch(spark: Any, session: Any, plan: dict[str, Any]) -> None:
    """Score rows under a named epoch, the second time in other partitions."""
    folder = Path(plan["folder"])
    with session.epoch("nightly"):
        rows = spark.range(0, scene.ROWS, 1, plan["partitions"])
        scored = rows.select("id", score(plan)("id").alias("v"))
        rows = scored.collect()
        if plan.get("again"):
            asked = (folder / "calls.txt").read_text()
            assert sorted(scored.collect()) == sorted(rows)
            assert (folder / "calls.txt").read_text() == asked
        if plan["die"]:
            wait_to_die(folder)
    write(folder, rows)


def stream(spark: Any, session: Any, plan: dict[str, Any]) -> None:
    """Score the rows of files, batch by batch; a time taken on the driver goes with each batch."""
    folder = Path(plan["folder"])

    def sink(rows: Any, number: int) -> None:
        at = clonos.time_ns()
        found = rows.collect()
        with (folder / f"batch-{number}.txt").open("a") as file:
            file.write(json.dumps([at, sorted((row.id, row.v) for row in found)]) + "\n")
        if plan["die"] and number == 1:
            wait_to_die(folder)

    lines = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    scored = lines.json(str(folder / "in")).select("id", score(plan)("id").alias("v"))
    query = scored.writeStream.foreachBatch(session.foreach_batch(sink))
    query = query.option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    (folder / "done").touch()


def wait_to_die(folder: Path) -> None:
    """Say that now is the time, and do nothing more."""
    (folder / "kill me").touch()
    time.sleep(600)


def write(folder: Path, rows: list[Any]) -> None:
    """Keep the result, and say that it is whole."""
    (folder / "rows.json").write_text(json.dumps([[row.id, row.v] for row in rows]))
    (folder / "done").touch()


if __name__ == "__main__":
    main()
