"""Executors and their agents killed while a stateful stream runs: state and output agree.

What the processor draws and asks is another each time; so a batch that ran twice, a key that was
counted twice or lost, and state that does not belong to what was emitted all show.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from scene import await_executors

import clonos
from clonos import testing

pytestmark = pytest.mark.timeout(600)

BATCHES = 8
KEYS = 200
ROWS_PER_KEY = 3
# Before an executor is killed in a batch: its tasks are at work, some are done.
INTO_THE_BATCH_SECONDS = 0.4
PARTITIONS = 6


class Drawing(StatefulProcessor):
    """Adds up what it draws and what it was answered; emits both sums."""

    def init(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "rows long, drawn long, answers double")
        self.seen = handle.getMapState("seen", "n long", "drawn long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count, drawn, answers = self.sums.get() or (0, 0, 0.0)
        for row in rows:
            number = clonos.random.randrange(1_000_000)
            self.seen.updateValue((row.n,), (number,))
            count, drawn = count + 1, drawn + number
        answers += clonos.call(time.time)
        if key[0] % 40 == 0:
            time.sleep(0.1)
        self.sums.update((count, drawn, answers))
        total = sum(value[0] for value in self.seen.values())
        yield Row(id=key[0], rows=count, drawn=drawn, total=total, answers=answers)


def stream(spark: Any, folder: Path) -> Any:
    """One file a batch, with each key a few times."""
    for batch in range(BATCHES):
        first = batch * ROWS_PER_KEY
        rows = [(key, first + n) for n in range(ROWS_PER_KEY) for key in range(KEYS)]
        spark.createDataFrame(rows, "id long, n long").coalesce(1).write.parquet(
            str(folder / f"{batch:02d}")
        )
    read = spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1)
    return read.parquet(str(folder / "*"))


class Reaper:
    """Kills one executor, and its agent with it, when it is told to."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._threads: list[threading.Thread] = []
        self.struck = 0

    def strike(self, after: float = 0.0) -> None:
        thread = threading.Thread(target=self._kill, args=(after,), daemon=True)
        thread.start()
        self._threads.append(thread)
        if not after:
            thread.join()

    def _kill(self, after: float) -> None:
        time.sleep(after)
        executors = testing.executors(self._spark)
        testing.kill(executors[self.struck % len(executors)].pid)
        self.struck += 1

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("folder", [False, True], ids=["in memory", "in a checkpoint folder"])
def test_state_and_output_agree_while_executors_are_killed(
    spark: Any, tmp_path: Path, folder: bool
) -> None:
    from pyspark import cloudpickle

    # Executors cannot import modules of the tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    rows = stream(spark, tmp_path / "in")
    # The loss between two batches and the next may be too close for copies in between.
    kept: Any = {"checkpoint_dir": str(tmp_path / "clonos")} if folder else {"standbys": 2}
    emitted: dict[int, list[Any]] = {}
    with clonos.attach(spark, **kept) as session:
        reaper = Reaper(spark)

        @session.foreach_batch
        def write(batch: Any, number: int) -> None:
            if number % 2 == 1:
                reaper.strike(after=INTO_THE_BATCH_SECONDS)
            emitted[number] = batch.collect()
            reaper.join()
            if number == 4:
                # Between two batches, with what was decided not committed yet.
                await_executors(spark)
                reaper.strike()

        drawn = clonos.transform_with_state(
            *(rows.groupBy("id"), Drawing()),
            *("id long, rows long, drawn long, total long, answers double", "update", "none"),
            uid="drawing",
            partitions=PARTITIONS,
        )
        query = (
            drawn.writeStream.foreachBatch(write)
            .outputMode("update")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
    assert reaper.struck >= BATCHES // 2 + 1
    assert sorted(emitted) == list(range(BATCHES))
    before: dict[int, Any] = defaultdict(lambda: (0, 0, 0.0))
    for number in sorted(emitted):
        assert sorted(row.id for row in emitted[number]) == list(range(KEYS))
        for row in emitted[number]:
            count, drawn_before, answers = before[row.id]
            assert row.rows == count + ROWS_PER_KEY
            # The map has what the sums were made of: nothing of an attempt that does not count.
            assert row.total == row.drawn > drawn_before
            assert row.answers > answers
            before[row.id] = (row.rows, row.drawn, row.answers)
