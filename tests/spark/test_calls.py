"""What a failure costs: an exception is asked again, and nothing that was answered before it is."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql.functions import pandas_udf

import clonos
from clonos import causal, testing

ROWS = 100
BAD = 50
# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Model:
    """Answers rows, notes each call in a file, and fails twice at one row."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._calls = folder / "calls"
        self._calls.touch()

    def ask(self, row: Any) -> str:
        with self._calls.open("a") as file:
            file.write(f"{row}\n")
        if row == BAD and self.counts()[BAD] <= 2:
            message = "the model is away"
            raise ConnectionError(message)
        return f"{row}: {time.time_ns()}"

    def counts(self) -> collections.Counter[int]:
        return collections.Counter(int(line) for line in self._calls.read_text().split())


def by_row(model: Model, flush: str) -> Any:
    return causal("string", uid="row", flush=flush)(model.ask)


def by_coroutine(model: Model, flush: str) -> Any:
    async def ask(row: int) -> str:
        # Those that are under way when one fails are given the time to come to their end.
        await asyncio.sleep(0.1 if row > BAD else 0.001)
        return model.ask(row)

    return causal("string", uid="async", concurrency=8, flush=flush)(ask)


def by_service(model: Model, flush: str) -> Any:
    def ask(row: int) -> str:
        return clonos.call(model.ask, row)

    return causal("string", uid="services", record="services", flush=flush)(ask)


def by_iterator(model: Model, _flush: str) -> Any:
    def ask(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            for row in batch:
                yield pd.Series([model.ask(row)])

    return causal(uid="iterator")(pandas_udf(ask, "string"))


@pytest.mark.parametrize("flush", ["auto", "batch", "call"])
@pytest.mark.parametrize("make", [by_row, by_coroutine, by_service, by_iterator])
def test_what_was_answered_before_an_exception_is_kept(
    spark: Any, tmp_path: Path, make: Any, flush: str
) -> None:
    model = Model(tmp_path)
    rows = spark.range(0, ROWS, 1, 1).select("id", make(model, flush)("id").alias("answer"))
    answers = rows.collect()
    assert [int(row.answer.partition(":")[0]) for row in answers] == list(range(ROWS))
    # Spark ran the task three times, and only the row that failed was asked three times.
    assert model.counts() == {row: 3 if row == BAD else 1 for row in range(ROWS)}


def test_a_value_that_does_not_fit_does_not_cost_the_others(spark: Any, tmp_path: Path) -> None:
    model = Model(tmp_path)

    @causal("int", uid="fit")
    def ask(row: int) -> Any:
        model.ask(row)
        return "no number" if row == BAD and model.counts()[BAD] <= 3 else row

    spark.range(0, ROWS, 1, 1).select(ask("id")).collect()
    assert max(count for row, count in model.counts().items() if row != BAD) == 1


def test_with_concurrency_no_call_waits_for_another(spark: Any) -> None:
    @causal("long", uid="slow", concurrency=16, flush="call")
    async def ask(row: int) -> int:
        # The last of sixteen is slow.
        await asyncio.sleep(1 if row % 16 == 15 else 0.01)
        return row

    spark.range(0, 1, 1, 1).select(ask("id")).collect()
    begun = time.monotonic()
    spark.range(0, 128, 1, 1).select(ask("id")).collect()
    # Group by group it would take 8 s.
    assert time.monotonic() - begun < 4


def test_an_answer_is_kept_though_the_worker_dies_within_its_batch(
    session: Any, spark: Any, tmp_path: Path
) -> None:
    model = Model(tmp_path)

    @causal("string", uid="dying")
    def ask(row: int) -> str:
        answer = model.ask(row + 1000)
        if row == BAD and model.counts()[1000 + BAD] == 1:
            time.sleep(2.5)
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    spark.range(0, ROWS, 1, 1).select("id", ask("id")).collect()
    # A call that does not come back keeps nothing from becoming stable.
    expected = {1000 + row: 2 if row == BAD else 1 for row in range(ROWS)}
    assert model.counts() == expected


@pytest.mark.classic
@pytest.mark.parametrize("caught", [False, True], ids=["ends the batch", "is caught"])
def test_an_exception_in_a_batch_function(
    session: Any, spark: Any, tmp_path: Path, caught: bool
) -> None:
    model = Model(tmp_path / "asked")
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    seen: list[str] = []
    later: list[int] = []

    def run() -> None:
        @session.foreach_batch
        def batch_function(_batch: Any, number: int) -> None:
            if number:
                later.append(number)
                return
            first = clonos.call(model.ask, 1)
            try:
                second = clonos.call(model.ask, BAD)
            except ConnectionError as error:
                if not caught:
                    raise
                second = f"{error} at {clonos.time_ns()}"
            seen.append(first + second)
            if len(seen) == 1:
                raise KeyError

        query = (
            source.writeStream.foreachBatch(batch_function)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            testing.wait_until(lambda: later or query.exception() is not None, "the first batch")
        finally:
            query.stop()

    for _ in range(4):
        with contextlib.suppress(Exception):
            run()
    assert len(seen) >= 2
    assert seen[0] == seen[1]
    # The exception that ended it was asked again; the one that was caught was not.
    assert model.counts() == ({1: 1, BAD: 1} if caught else {1: 1, BAD: 3})
