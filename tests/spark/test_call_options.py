"""Options of calls in real tasks: clients, limits, tries, exceptions as answers."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import tenacity
from pyspark import cloudpickle
from pyspark.sql.functions import arrow_udf, pandas_udf

import clonos
from clonos import causal, testing
from clonos.errors import ConfigError

PARTITIONS = 4
# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def note(file: Path, text: object) -> None:
    with file.open("a") as out:
        out.write(f"{text}\n")


class Client:
    """Notes in a file where it was made and closed; answers in its own loop only."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._loop: Any = None
        note(file, f"made {os.getpid()}")

    async def aclose(self) -> None:
        self._check()
        note(self._file, f"closed {os.getpid()}")

    def _check(self) -> None:
        assert self._loop in {None, asyncio.get_running_loop()}
        self._loop = asyncio.get_running_loop()

    async def get(self, row: int) -> int:
        self._check()
        await asyncio.sleep(0)
        return row * 10

    def get_now(self, row: int) -> int:
        return row * 10


def functions(client: Any) -> dict[str, Any]:
    async def coroutine(client: Client, row: int) -> int:
        return await client.get(row)

    def function(client: Client, row: int) -> int:
        return client.get_now(row)

    # No type hints: PySpark takes each for that of a column.
    def series(client, rows):  # type: ignore[no-untyped-def]
        return rows.map(client.get_now)

    def arrays(client, rows):  # type: ignore[no-untyped-def]
        return pa.array([client.get_now(row.as_py()) for row in rows])

    def batches(client, batches):  # type: ignore[no-untyped-def]
        for rows in batches:
            yield rows.map(client.get_now)

    from pyspark.sql.functions import ArrowUDFType, PandasUDFType

    pandas, arrow = PandasUDFType, ArrowUDFType
    return {
        "row": causal("long", uid="row", setup=client)(function),
        "services": causal("long", uid="serv", setup=client, record="services")(function),
        "async": causal("long", uid="async", setup=client, concurrency=4)(coroutine),
        "pandas": causal(uid="pandas", setup=client)(pandas_udf(series, "long", pandas.SCALAR)),
        "arrow": causal(uid="arrow", setup=client)(arrow_udf(arrays, "long", arrow.SCALAR)),
        "pandas iterator": causal(uid="iter", setup=client)(
            pandas_udf(batches, "long", pandas.SCALAR_ITER)
        ),
    }


@pytest.mark.parametrize("kind", ["row", "services", "async", "pandas", "arrow", "pandas iterator"])
def test_each_worker_makes_one_client_and_closes_it(spark: Any, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "clients"
    ask = functions(lambda: Client(file))[kind]
    for _ in range(2):
        rows = spark.range(0, 40, 1, PARTITIONS).select(ask("id").alias("v")).collect()
        assert sorted(row.v for row in rows) == [row * 10 for row in range(40)]
    made = [line for line in file.read_text().split("\n") if line.startswith("made")]
    assert len(made) == len(set(made)), "at most one for each worker"
    testing.wait_until(
        lambda: file.read_text().count("closed") == len(made), "all clients are closed", 40
    )


@pytest.mark.classic
def test_a_client_from_outside_is_refused_with_advice(spark: Any) -> None:
    lock = threading.Lock()

    @causal("long", uid="closure")
    def ask(row: int) -> int:
        with lock:
            return row

    with pytest.raises(ConfigError, match="setup="):
        spark.range(3).select(ask("id"))


def test_a_rate_limit_is_of_the_application(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "calls"

    @causal("long", uid="limited", rate_limit="50/s")
    def ask(row: int) -> int:
        note(file, time.monotonic())
        return row

    @causal("long", uid="limited too", rate_limit="3000/min", concurrency=8)
    async def ask_async(row: int) -> int:
        note(file, time.monotonic())
        await asyncio.sleep(0.05)
        return row

    for function in (ask, ask_async):
        file.write_text("")
        spark.range(0, 60, 1, PARTITIONS).select(function("id")).collect()
        times = sorted(map(float, file.read_text().split()))
        assert len(times) == 60
        # Two tasks at a time, of which each alone would take half of it.
        assert times[-1] - times[0] >= 59 / 50 * 0.9
        for first, last in zip(times, times[25:], strict=False):
            assert last - first >= 0.5 * 0.8


def test_an_exception_is_retried_or_recorded(session: Any, spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "calls"
    file.touch()

    def flaky(row: int) -> str:
        key = clonos.idempotency_key()
        note(file, f"{row}-{key}")
        if row == 5 or (row == 7 and file.read_text().count("7-") < 3):
            raise ConnectionError(f"no {row}")
        return str(row)

    async def flaky_async(row: int) -> str:
        return flaky(row)

    for number, fn in enumerate((flaky, flaky_async)):
        file.write_text("")
        ask = causal("string", uid=f"record-{number}", retries=2, on_error="record")(fn)
        rows = spark.range(0, 10, 1, 2)
        with session.epoch(f"record-{number}"):
            answers = rows.select("id", ask("id").alias("a")).select("id", "a.*").collect()
            again = rows.select("id", ask("id").alias("a")).select("id", "a.*").collect()
        assert answers == again, "the error is an answer, and is recorded"
        assert [row.error for row in answers if row.error] == ["ConnectionError: no 5"]
        assert [row.value for row in answers] == [None if n == 5 else str(n) for n in range(10)]
        calls = file.read_text().split()
        assert len(calls) == 10 + 2 + 2
        assert len(set(calls)) == 10, "all tries of a call have one key"


def test_what_tenacity_gave_up_is_recorded_as_what_went_wrong(spark: Any) -> None:
    twice = tenacity.Retrying(stop=tenacity.stop_after_attempt(2))

    @causal("string", uid="tenacity", retries=twice, on_error="record")
    def ask(row: int) -> str:
        raise OSError(f"no {row}")

    rows = spark.range(1).select(ask("id").alias("a")).select("a.*").collect()
    assert [row.error for row in rows] == ["OSError: no 0"]


def test_null_stands_for_an_exception(spark: Any) -> None:
    @causal("long", uid="null", on_error="null")
    def ask(row: int) -> int:
        return 10 // row

    rows = spark.range(0, 3, 1, 1).select(ask("id").alias("v")).collect()
    assert [row.v for row in rows] == [None, 10, 5]


def test_pandas_functions_are_tried_again(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "calls"

    @causal(uid="series", retries=1)
    @pandas_udf("long")
    def ask(rows: pd.Series) -> pd.Series:
        first = not file.exists()
        note(file, len(rows))
        if first:
            raise ConnectionError
        return rows

    assert len(spark.range(0, 10, 1, 1).select(ask("id")).collect()) == 10
    assert file.read_text().split() == ["10", "10"]


def test_an_awaited_service_is_recorded(session: Any, spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "calls"

    async def get(row: int) -> float:
        note(file, row)
        await asyncio.sleep(0.001)
        if row % 2:
            raise LookupError(str(row))
        return time.time()

    @causal("string", uid="awaiting", record="services")
    async def ask(row: int) -> str:
        try:
            return str(await clonos.call(get, row))
        except LookupError as error:
            return f"{error} {await clonos.call(get(2 * row))}"

    rows = spark.range(0, 10, 1, 2)
    with session.epoch("awaited"):
        first = rows.select("id", ask("id")).collect()
        calls = file.read_text()
        assert rows.select("id", ask("id")).collect() == first
    assert file.read_text() == calls
    assert len(calls.split()) == 15


def test_two_services_awaited_at_a_time_are_refused(spark: Any) -> None:
    @causal("string", uid="gathering", record="services")
    async def ask(row: int) -> str:
        waits = [clonos.call(asyncio.sleep, 0.01, row) for row in range(2)]
        return str(await asyncio.gather(*waits))

    with pytest.raises(Exception, match="CALLS_OVERLAP"):
        spark.range(0, 1, 1, 1).select(ask("id")).collect()


@pytest.mark.parametrize("record", ["result", "services"])
def test_all_tries_of_a_call_have_one_key(session: Any, tmp_path: Path, record: Any) -> None:
    keys = str(tmp_path / "keys")

    @causal("string", record=record, retries=3)
    def ask(_row: int) -> str:
        key = clonos.idempotency_key()
        with Path(keys).open("a") as file:
            file.write(f"{key}\n")
        if len(Path(keys).read_text().split()) < 3:
            raise TimeoutError
        return key

    session.spark.range(1).select(ask("id")).collect()
    tries = Path(keys).read_text().split()
    assert len(tries) == 3
    assert len(set(tries)) == 1


def test_calls_for_other_batches_have_other_keys(session: Any, tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")

    @causal(per="value")
    @arrow_udf("long")
    def ask(rows: pa.Array) -> pa.Array:
        with Path(keys).open("a") as file:
            file.write(f"{clonos.idempotency_key()}\n")
        return rows

    with session.epoch("batches"):
        for numbers in ([0, 1, 2], [0, 7, 8], [0, 1, 2, 9]):
            rows = session.spark.createDataFrame([(n,) for n in numbers], "n long").coalesce(1)
            rows.select(ask("n")).collect()
    made = Path(keys).read_text().split()
    assert len(made) == len(set(made)) == 3
