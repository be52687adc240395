"""A driver with keyed state and chance to be killed: ``python state_driver.py '<json>'``.

Each batch goes to a table, once, by its number. Keys of the JSON: folder, hang (the number of a
batch and the step after which to say so and wait to be killed, or nothing), pause (seconds for each
key; a part of the processor, so the same in every run).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import operator
import os
import random
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from dying import session_of, told_to
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import clonos

OUTPUT = "id string, rows long, drawn long, total long, answers double"
KEYS = 20
ROWS_PER_KEY = 3


def ask(record: str, what: str) -> float:
    """A call that gives another answer each time; it writes down what it gave."""
    answer = random.random()
    descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{what} {answer!r}\n".encode())
    finally:
        os.close(descriptor)
    return answer


class Drawing(StatefulProcessor):
    """Adds up what it draws and what it is answered, for each row once; emits the sums."""

    def __init__(self, record: str, pause: float) -> None:
        self.record, self.pause = record, pause

    def init(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "rows long, drawn long, answers double")
        self.all = handle.getListState("all", "drawn long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count, drawn, answers = self.sums.get() or (0, 0, 0.0)
        for row in sorted(rows, key=lambda row: row.n):
            number = clonos.random.randrange(1_000_000)
            self.all.appendValue((number,))
            answers += clonos.call(ask, self.record, f"{key[0]} {row.n}")
            count, drawn = count + 1, drawn + number
        time.sleep(self.pause)
        self.sums.update((count, drawn, answers))
        total = sum(number for (number,) in self.all.get())
        yield Row(id=key[0], rows=count, drawn=drawn, total=total, answers=answers)


def put(folder: Path, batch: int) -> None:
    """Put a file of one batch where the stream reads."""
    (folder / "in").mkdir(exist_ok=True)
    rows = [
        {"id": f"k{key}", "n": batch * ROWS_PER_KEY + n}
        for n in range(ROWS_PER_KEY)
        for key in range(KEYS)
    ]
    file = folder / "in" / f"{batch}.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(file, (1_700_000_000 + batch,) * 2)


def asked(folder: Path) -> list[tuple[str, float]]:
    """Return what somebody was asked, and the answer, in order."""
    calls = folder / "calls.txt"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return [(what, float(answer)) for what, _, answer in (line.rpartition(" ") for line in lines)]


def written(folder: Path) -> list[tuple[Any, ...]]:
    """Return the rows that arrived, by batch."""
    with contextlib.suppress(sqlite3.OperationalError):
        with closing(sqlite3.connect(folder / "results.db")) as base:
            return base.execute(
                "SELECT id, rows, drawn, total, answers, batch FROM results ORDER BY batch"
            ).fetchall()
    # Nobody has made the table yet.
    return []


def of_batch(key: str, batch: int) -> list[str]:
    """Return what is asked for a key in a batch."""
    return [f"{key} {n}" for n in range(batch * ROWS_PER_KEY, (batch + 1) * ROWS_PER_KEY)]


def check(folder: Path, batches: int) -> None:
    """See that state and output are those of a run without failures."""
    given: dict[str, list[float]] = defaultdict(list)
    for what, answer in asked(folder):
        given[what].append(answer)
    assert len(given) == batches * ROWS_PER_KEY * KEYS
    found = written(folder)
    assert len(found) == batches * KEYS
    before: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for key, rows, drawn, total, answers, batch in found:
        drawn_before, answers_before = before[key]
        assert rows == (batch + 1) * ROWS_PER_KEY
        # The list has what the sum was made of: nothing of a run that does not count.
        assert total == drawn > drawn_before
        # Added in this order, so the sums are the same to the last bit.
        possible = itertools.product(*(given[what] for what in of_batch(key, batch)))
        assert answers in {
            functools.reduce(operator.add, some, answers_before) for some in possible
        }
        before[key] = drawn, answers


def main() -> None:
    from pyspark.sql.functions import lit

    plan = json.loads(sys.argv[1])
    folder = Path(plan["folder"])

    told, spark = told_to(plan), session_of(3)
    settings = plan.get("attach") or {"checkpoint_dir": folder / "logs"}
    with clonos.attach(spark, **settings) as session:
        files = spark.readStream.schema("id string, n long").option("maxFilesPerTrigger", 1)
        drawn = clonos.transform_with_state(
            files.json(str(folder / "in")).groupBy("id"),
            Drawing(str(folder / "calls.txt"), plan["pause"]),
            *(OUTPUT, "update", "none"),
            uid="drawing",
        )

        @session.foreach_batch
        def write(batch: Any, number: int) -> None:
            told(number, "begun")
            rows = batch.withColumn("batch", lit(number)).write.format("clonos-sqlite")
            rows = rows.option("table", "results").option("epoch", number)
            rows.mode("append").option("path", str(folder / "results.db")).save()
            told(number, "written")

        writer = drawn.writeStream.outputMode("update").foreachBatch(write)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
