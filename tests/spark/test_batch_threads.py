"""What a ``foreachBatch`` function does in threads is of its batch, however they are started."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.sql.streaming import DataStreamWriter

from clonos import causal

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Answers = dict[int, float]


@causal("double")
def drawn(_value: int) -> float:
    return random.random()


def answers(frame: Any) -> Answers:
    return dict(frame.collect())


def in_pool(frames: list[Any]) -> list[Answers]:
    with ThreadPoolExecutor(len(frames)) as pool:
        return list(pool.map(answers, frames))


def in_asyncio(frames: list[Any]) -> list[Answers]:
    async def all_of_them() -> list[Answers]:
        return await asyncio.gather(*(asyncio.to_thread(answers, frame) for frame in frames))

    return asyncio.run(all_of_them())


def in_threads_that_inherit(frames: list[Any]) -> list[Answers]:
    found: list[Answers] = []
    threads = [
        InheritableThread(target=lambda frame=frame: found.append(answers(frame)))
        for frame in frames
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def one_after_the_other(frames: list[Any]) -> list[Answers]:
    return [answers(frame) for frame in frames]


def run(spark: Any, folder: Path, handle: Any) -> None:
    """Run a query over three files of 20 rows, one in each batch, or what is left of them."""
    if not (folder / "in").exists():
        for first in (0, 20, 40):
            spark.range(first, first + 20, 1, 1).write.mode("append").parquet(str(folder / "in"))
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    rows = rows.parquet(str(folder / "in")).select("id", drawn("id").alias("drawn"))
    writer = rows.writeStream.foreachBatch(handle).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


@pytest.mark.parametrize(
    ("ways", "wrapped"),
    [(in_pool, False), (in_pool, True), (in_asyncio, False), (in_threads_that_inherit, True)],
)
def test_every_thread_finds_what_another_has_recorded(
    session: Any, tmp_path: Path, ways: Any, wrapped: bool
) -> None:
    seen: dict[int, list[Answers]] = {}

    def handle(batch: Any, number: int) -> None:
        seen.setdefault(number, []).extend(ways([batch, batch.filter("id >= 0"), batch]))
        # The batch is run again, by a query that is made anew.
        if number == 1 and len(seen[number]) == 3:
            raise KeyError(number)

    function = session.foreach_batch(handle) if wrapped else handle
    with pytest.raises(Exception, match="KeyError"):
        run(session.spark, tmp_path, function)
    run(session.spark, tmp_path, function)
    assert {number: len(of_batch) for number, of_batch in seen.items()} == {0: 3, 1: 6, 2: 3}
    for of_batch in seen.values():
        assert len(of_batch[0]) == 20
        assert all(answered == of_batch[0] for answered in of_batch)


def test_threads_and_the_function_itself_have_the_same(session: Any, tmp_path: Path) -> None:
    seen: list[Answers] = []

    def handle(batch: Any, _number: int) -> None:
        seen.extend(one_after_the_other([batch]) + in_pool([batch, batch]))

    run(session.spark, tmp_path, handle)
    assert len(seen) == 9
    assert all(seen[i] == seen[i - i % 3] for i in range(9))


def test_after_the_session_spark_has_its_own_back(plain_spark: Any) -> None:
    import clonos

    before = DataStreamWriter.foreachBatch
    with clonos.attach(plain_spark):
        assert DataStreamWriter.foreachBatch is not before
    assert DataStreamWriter.foreachBatch is before
