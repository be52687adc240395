"""A stream with a loop, to be killed: ``python loop_driver.py '<json>'``.

Calls that failed come back through the loop, with the number of tries and the sum of all answers.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from dying import session_of, told_to

import clonos
from clonos import causal

LOOP = "id long, tries int, total double"
ANSWER = "done boolean, answer double"
# More tries than this are not made: the call of the last one succeeds.
MOST_TRIES = 4
SECONDS_PER_CALL = 0.01
# Said at the end of a step of a batch: may kill, or wait to be killed.
Told = Callable[[int, str], None]


def ask(record: str, what: str) -> float:
    """A call that gives another answer each time; it writes down what it gave."""
    time.sleep(SECONDS_PER_CALL)
    answer = random.random()
    descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{what} {answer!r}\n".encode())
    finally:
        os.close(descriptor)
    return answer


def attempt_in(record: str) -> Any:
    """The causal function: what it decides depends on the call and on the dice."""

    @causal(ANSWER, uid="attempt", record="services", flush="call")
    def attempt(row: int, tries: int) -> tuple[bool, float]:
        answer = clonos.call(ask, record, f"{row} {tries}")
        return tries >= MOST_TRIES or (answer + clonos.random.random()) < 0.8, answer

    return attempt


def start(session: Any, folder: Path, tasks: int, told: Told) -> Any:
    """Start the query; it ends when it has read all there is, and the loop is empty."""
    from pyspark.sql.functions import col, expr, lit

    spark = session.spark
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    rows = rows.json(str(folder / "in")).selectExpr("id", "0 as tries", "cast(0 as double) total")
    again = spark.readStream.format("clonos-loop").schema(LOOP).option("untilEmpty", "true")
    tried = rows.unionByName(again.load(str(folder / "loop"))).repartition(tasks, "id")
    tried = tried.withColumn("tries", col("tries") + 1)
    tried = tried.withColumn("found", attempt_in(str(folder / "calls.txt"))("id", "tries"))
    tried = tried.withColumn("total", expr("total + found.answer"))

    @session.foreach_batch
    def write(batch: Any, number: int) -> None:
        told(number, "begun")
        attempts = batch.select("id", "tries", "total", "found.*", lit(number).alias("epoch"))
        attempts = attempts.write.format("clonos-sqlite").option("table", "attempts")
        attempts = attempts.option("path", str(folder / "results.db")).option("epoch", number)
        attempts.mode("append").save()
        told(number, "results")
        failed = batch.where("not found.done").select("id", "tries", "total")
        failed.write.format("clonos-loop").mode("append").save(str(folder / "loop"))
        told(number, "loop")

    writer = tried.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start()


def check(folder: Path, ids: list[int]) -> int:
    """See that each row was tried once an epoch until it was done; return the number of tries."""
    with closing(sqlite3.connect(folder / "results.db")) as base:
        found = base.execute(
            "SELECT id, tries, total, done, answer, epoch FROM attempts"
        ).fetchall()
    given = defaultdict(set)
    for line in (folder / "calls.txt").read_text().splitlines():
        row, tries, answer = line.split()
        given[int(row), int(tries)].add(float(answer))
    tried = defaultdict(list)
    for row in sorted(found):
        tried[row[0]].append(row)
    assert sorted(tried) == ids
    for row, attempts in tried.items():
        assert [tries for _, tries, *_ in attempts] == list(range(1, len(attempts) + 1)), attempts
        assert [bool(done) for *_, done, _, _ in attempts] == [False] * (len(attempts) - 1) + [True]
        epochs = [epoch for *_, epoch in attempts]
        assert epochs == sorted(set(epochs))
        total = 0.0
        for _, tries, summed, _, answer, _ in attempts:
            # What went round is what the results say, and what somebody was answered.
            assert answer in given[row, tries]
            total += answer
            assert summed == total
    # Nobody asked for a try that does not count.
    assert set(given) == {(row, tries) for row, tries, *_ in found}
    return len(found)


def put(folder: Path, name: str, ids: range) -> None:
    """Put rows where the stream reads."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("".join(json.dumps({"id": n}) + "\n" for n in ids))


def main() -> None:
    plan = json.loads(sys.argv[1])
    folder = Path(plan["folder"])

    told, spark = told_to(plan), session_of(2)
    with clonos.attach(spark, checkpoint_dir=folder / "logs") as session:
        start(session, folder, 2, told).awaitTermination()


if __name__ == "__main__":
    main()
