"""Options of calls: what is refused at decoration, and what a worker makes of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import tenacity
from pyspark.errors import PySparkTypeError
from pyspark.sql.functions import arrow_udf, pandas_udf
from pyspark.sql.types import LongType

from clonos import causal
from clonos._calls import Calls
from clonos._worker import clients
from clonos._worker.answers import Answers
from clonos._worker.calls import Permits, prepared
from clonos.errors import ConfigError, Fenced


def of_row(row: int) -> int:
    return row


async def awaited(row: int) -> int:
    return row


@pandas_udf(LongType())
def of_series(rows: pd.Series) -> pd.Series:
    return rows


@arrow_udf(LongType())
def of_arrays(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    yield from batches


@pytest.mark.parametrize(
    ("fn", "options", "word"),
    [
        (of_row, {"retries": -1}, "retries=-1"),
        (of_row, {"retries": True}, "retries=True"),
        (of_row, {"retries": "3"}, "tenacity"),
        (of_row, {"on_error": "ignore"}, "on_error='ignore'"),
        (of_row, {"rate_limit": "fast"}, "'100/s'"),
        (of_row, {"rate_limit": "0/s"}, "rate_limit='0/s'"),
        (of_row, {"timeout": 3}, "async def"),
        (awaited, {"timeout": -1}, "timeout=-1"),
        (awaited, {"timeout": float("nan")}, "timeout=nan"),
        (awaited, {"timeout": 3, "record": "services"}, "record='result'"),
        (of_row, {"setup": 3}, "setup=3"),
        (of_row, {"setup": threading.Lock().acquire}, "inside of it"),
        (of_series, {"on_error": "null"}, "on_error='null'"),
        (of_series, {"timeout": 3}, "timeout="),
        (of_arrays, {"retries": 3}, "retries="),
        (of_arrays, {"rate_limit": "1/s"}, "rate_limit="),
        (of_row, {"flush": "never"}, "flush='never'"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_decoration(
    fn: Any, options: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        causal("long", **options)(fn)
    assert word in str(refused.value)


class Flaky:
    """Fails so many times."""

    def __init__(self, times: int, error: type[Exception] = ConnectionError) -> None:
        self.calls = 0
        self._times = times
        self._error = error

    def __call__(self, row: int) -> int:
        self.calls += 1
        if self.calls <= self._times:
            message = "away"
            raise self._error(message)
        return row

    async def later(self, row: int) -> int:
        return self(row)


def run(flaky: Flaky, row: int, *, asynchronous: bool, **options: Any) -> Any:
    """One call with the options."""
    calls = Calls.parse("async" if asynchronous else "row", "result", **options)
    fn: Any = flaky.later if asynchronous else flaky
    with prepared(calls, fn, "uid", None, asynchronous=asynchronous) as (call, _loop):
        return asyncio.run(call(row)) if asynchronous else call(row)


quick = tenacity.Retrying(stop=tenacity.stop_after_attempt(3), reraise=True)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_call_is_tried_again(asynchronous: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr("clonos._calls.BACK_OFF_SECONDS", 0.001)
    assert run(Flaky(2), 7, asynchronous=asynchronous, retries=2) == 7
    assert run(Flaky(2), 7, asynchronous=asynchronous, retries=quick) == 7
    for retries in (2, quick):
        flaky = Flaky(9)
        with pytest.raises(ConnectionError):
            run(flaky, 7, asynchronous=asynchronous, retries=retries)
        assert flaky.calls == 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_exception_can_be_an_answer(asynchronous: bool) -> None:
    assert run(Flaky(9), 7, asynchronous=asynchronous, on_error="null") is None
    record = {"asynchronous": asynchronous, "on_error": "record"}
    assert run(Flaky(9), 7, **record) == (None, "ConnectionError: away")
    assert run(Flaky(0), 7, **record) == (7, None)


def test_errors_of_clonos_are_no_answers_and_not_tried_again() -> None:
    flaky = Flaky(9, Fenced)
    with pytest.raises(Fenced):
        run(flaky, 7, asynchronous=False, retries=3, on_error="null")
    assert flaky.calls == 1


def test_a_try_has_its_time_out() -> None:
    async def slow(row: int) -> int:
        await asyncio.sleep(5)
        return row

    calls = Calls.parse("async", "result", timeout=0.01, on_error="record")
    with prepared(calls, slow, "uid", None, asynchronous=True) as (call, _loop):
        assert asyncio.run(call(1))[1].startswith("TimeoutError")


def test_permits_are_an_interval_apart_and_those_that_are_late_are_lost() -> None:
    reserved: list[int] = []

    def reserve(count: int) -> int:
        reserved.append(count)
        return 0

    permits = Permits(10_000_000, reserve)
    waits = [permits.wait() for _ in range(4)]
    assert reserved == [1, 2, 4]
    assert waits[0] == waits[1] == 0
    assert 0.009 < waits[2] <= 0.01
    time.sleep(0.1)
    assert permits.wait() == 0
    assert reserved == [1, 2, 4, 1], "what was saved up is not used at once"


class Session:
    made = 0
    closed = 0

    def __init__(self) -> None:
        Session.made += 1

    def close(self) -> None:
        Session.closed += 1


def test_a_worker_makes_one_client_and_closes_it_when_it_idles(monkeypatch: Any) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr(clients, "IDLE_SECONDS", 0.1)
    Session.made = Session.closed = 0
    calls = Calls.parse("row", "result", setup=Session)
    for row in range(3):
        with prepared(calls, lambda _client, row: row, "u", None, asynchronous=False) as (call, _):
            assert [call(row), call(row=row)] == [row, row]
    assert (Session.made, Session.closed) == (1, 0)
    time.sleep(0.3)
    assert (Session.made, Session.closed) == (1, 1)


def test_answers_that_come_in_any_order_are_put_in_the_order_of_rows() -> None:
    kept: list[tuple[list[int], list[int]]] = []
    answers = Answers(lambda places, values: kept.append((places, values.to_pylist())))
    values, answers.places = answers.begin(pa.array), []
    for place in (2, 0):
        answers.places.append(place)
        values.append(place * 10)
    answers.save()
    answers.places.append(1)
    values.append(10)
    assert answers.array().to_pylist() == [0, 10, 20]
    assert kept == [([2, 0], [20, 0])]


def test_a_save_that_comes_after_the_end_of_a_batch_keeps_nothing() -> None:
    kept: list[Any] = []
    answers = Answers(lambda places, _values: kept.append(places))
    answers.begin(pa.array).extend([1, 2])
    assert answers.array().to_pylist() == [1, 2]
    answers.save()
    answers.rescue()
    assert not kept, "its places would be taken for rows of the next batch"


def test_the_function_may_come_with_its_type_as_for_a_udf() -> None:
    def double(n: int) -> int:
        return 2 * n

    for made in (causal(double, "long"), causal("long")(double), causal(returnType="long")(double)):
        assert made(2) == 4
        assert made._declared.declared_type == "long"
    with pytest.raises(PySparkTypeError, match="NOT_EXPECTED_TYPE"):
        causal(5)  # type: ignore[call-overload]
