"""The stage for tests that lose processes: a job that asks a service, and a way to kill in it.

The service is a file: each call appends the row it was asked about and the answer it gave, in one
write, so that nobody's death tears a line. The first answer of a row is the one that must stand.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from clonos import testing

ROWS = 600
MAP_TASKS = 6
REDUCE_TASKS = 9
# Rows of that many tasks are out when processes are killed: Spark cannot take them back.
DONE_BEFORE_KILL = 3
EXECUTORS = 3
REDUCE_SECONDS = 0.6
PATIENCE_SECONDS = 150.0


def start(master: str, **settings: str) -> Any:
    """Start Spark with what every test wants."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import cloudpickle
    from pyspark.sql import SparkSession

    # Executors cannot import modules of the tests, so these travel by value.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    builder = SparkSession.builder.master(master).appName("kill tests")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.task.maxFailures": "8",
        "spark.stage.maxConsecutiveAttempts": "12",
        **settings,
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextlib.contextmanager
def cluster(executors: int, **settings: str) -> Iterator[Any]:
    """Start Spark with executors that may be killed; all of them are gone in the end."""
    # A lost executor does not come back; asking it again for its shuffle files only takes time.
    retries = {"spark.shuffle.io.maxRetries": "1", "spark.shuffle.io.retryWait": "200ms"}
    spark = start(f"local-cluster[{executors},1,1024]", **retries, **settings)
    yield spark
    # Killing first keeps Spark from starting executors while it shuts down.
    pids = [executor.pid for executor in testing.executors(spark)]
    spark.stop()
    testing.wait_gone(*pids)


def ask(record: str, row: object) -> float:
    """Ask the service about a row; it answers differently each time."""
    answer = random.random()
    descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{row} {answer!r}\n".encode())
    finally:
        os.close(descriptor)
    return answer


@dataclass
class Record:
    """What the service wrote down."""

    path: Path
    first: dict[str, float] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def read(self) -> Record:
        """Read it again from the start."""
        self.first, self.calls = {}, Counter()
        for line in self.path.read_text().splitlines():
            row, answer = line.split(" ")
            self.first.setdefault(row, float(answer))
            self.calls[row] += 1
        return self

    @property
    def twice(self) -> list[str]:
        """Rows that were asked about more than once."""
        return [row for row, count in self.calls.items() if count > 1]


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    """Stand for the work of the second stage."""
    time.sleep(REDUCE_SECONDS)
    yield from batches


def job(spark: Any, scored: Any) -> Any:
    """First stage: `scored`, with columns id and v. Shuffle by v. Second stage: slow work."""
    return scored.repartition(REDUCE_TASKS, "v").mapInArrow(slowly, "id long, v double")


def check(rows: list[Any], record: Record, count: int = ROWS) -> None:
    """Every row is there once, with the first answer that was given for it."""
    assert sorted(row.id for row in rows) == list(range(count))
    other = [row.id for row in rows if row.v != record.first[str(row.id)]]
    assert not other, f"{len(other)} rows have another answer than the first"


class Killer:
    """Kills once the second stage has begun to put rows out, from a thread of its own."""

    def __init__(self, spark: Any, kill: Callable[[list[testing.Executor]], None]) -> None:
        self._spark = spark
        self._kill = kill
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.struck = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._thread.join(PATIENCE_SECONDS)

    def _watch(self) -> None:
        tracker = self._spark.sparkContext.statusTracker()

        def second_stage_runs() -> bool:
            infos = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
            return any(
                info
                and info.numTasks == REDUCE_TASKS
                and info.numCompletedTasks >= DONE_BEFORE_KILL
                for info in infos
            )

        testing.wait_until(second_stage_runs, "the second stage to put rows out", interval=0.02)
        self._kill(testing.executors(self._spark))
        self.struck += 1


def await_executors(spark: Any, count: int = EXECUTORS) -> None:
    """Wait until Spark has put new executors in the place of those that were killed."""
    master = spark.sparkContext._jsc.sc()

    def registered() -> bool:
        # The driver counts too, and perhaps one that Spark does not know to be gone yet.
        known = master.getExecutorMemoryStatus().size() - 1
        return bool(known >= count and len(testing.executors(spark)) >= count)

    # On a busy machine Spark takes its time to notice, and to start another.
    testing.wait_until(registered, f"{count} executors", 2 * PATIENCE_SECONDS)
