"""Every kind of function, service and operator: run twice in one epoch, it gives the same rows."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import decimal
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.functions import arrow_udf, pandas_udf
from pyspark.sql.types import DoubleType

import clonos
import clonos.functions as cf
from clonos import causal
from clonos._driver.session import EXECUTION_POLL_SECONDS

ROWS = 60
pytestmark = pytest.mark.timeout(240)
# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@causal("double", uid="row")
def by_row(_row: Any) -> float:
    return random.random()


@causal("double", uid="two")
def of_two(_left: Any, _right: Any = None) -> float:
    return random.random()


@causal("double", uid="none")
def of_none() -> float:
    return random.random()


@causal("boolean", uid="call", flush="call")
def by_call(_row: Any) -> bool:
    return random.random() > 0.5


@causal("double", uid="async", concurrency=8)
async def awaited(_row: Any) -> float:
    await asyncio.sleep(0.001)
    return random.random()


@causal(uid="pandas")
@pandas_udf(DoubleType())
def by_series(rows: pd.Series) -> pd.Series:
    return rows.map(lambda _row: random.random())


@causal(uid="pandas-iter")
@pandas_udf(DoubleType())
def by_series_iterator(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
    for left, right in batches:
        yield left * random.random() + right


@causal(uid="arrow")
@arrow_udf(DoubleType())
def by_array(rows: pa.Array) -> pa.Array:
    return pa.array([random.random() for _ in rows])


@causal(uid="arrow-iter")
@arrow_udf(DoubleType())
def by_array_iterator(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for rows in batches:
        yield pa.array([random.random() for _ in rows])


@causal("struct<a:int,b:array<string>,t:timestamp,d:decimal(10,2),m:map<string,int>>", uid="struct")
def nested(_row: Any) -> Any:
    now = dt.datetime.now()
    pick = random.randint(0, 9)
    return (pick, [str(random.random()), None], now, decimal.Decimal("1.25"), {"k": pick})


@causal("string", uid="types")
def of_types(row: Any, at: Any, items: Any) -> str:
    return f"{row} {at} {items} {random.random()}"


@causal("string", uid="services", record="services")
def from_services(_row: Any) -> str:
    drawn = (clonos.random.random(), clonos.random.choice([1, 2, 3]), clonos.uuid4())
    numbers = clonos.numpy_rng().integers(1000)
    secret = clonos.token_bytes(4).hex()
    return f"{clonos.time_ns()} {drawn} {numbers} {secret} {clonos.call(os.getpid)}"


@causal("string", uid="key")
def keys(_row: Any) -> str:
    return f"{clonos.idempotency_key()} {clonos.idempotency_key()}"


@causal("double", uid="outer")
def calls_another(row: Any) -> float:
    return float(by_row(row)) + 1


QUERIES: dict[str, Callable[[Any], Any]] = {
    "row": lambda df: df.select("id", by_row("id")),
    "two columns": lambda df: df.select("id", of_two("id", sf.col("id") + 1)),
    "a named argument": lambda df: df.select("id", of_two("id", _right="id")),
    "no arguments": lambda df: df.select("id", of_none()),
    "flush by call": lambda df: df.select("id", by_call("id")),
    "async": lambda df: df.select("id", awaited("id")),
    "pandas": lambda df: df.select("id", by_series("id")),
    "pandas iterator": lambda df: df.select("id", by_series_iterator("id", sf.col("id") * 2)),
    "arrow": lambda df: df.select("id", by_array("id")),
    "arrow iterator": lambda df: df.select("id", by_array_iterator("id")),
    "nested result": lambda df: df.select("id", nested("id")),
    "nested arguments": lambda df: df.select(
        "id", of_types(sf.struct("id"), sf.timestamp_seconds("id"), sf.array("id"))
    ),
    "services": lambda df: df.select("id", from_services("id")),
    "idempotency keys": lambda df: df.select("id", keys("id")),
    "a causal call in another": lambda df: df.select("id", calls_another("id")),
    "twice over other columns": lambda df: df.select(by_row("id"), by_row(sf.col("id") + 1)),
    "over its own result": lambda df: df.select(by_row(by_row("id"))),
    "filter": lambda df: df.where(by_row("id") > 0.5),
    "several partitions in one task": lambda df: df.select("id", by_row("id")).coalesce(1),
    "behind a shuffle": lambda df: df.repartition(3).select("id", by_row("id")),
    "equal rows with a key": lambda df: df.repartition(3).select(
        "id", of_none(row_key="id"), by_row(sf.lit(1), row_key="*")
    ),
    "no rows": lambda df: df.where("id < 0").select(by_row("id")),
    "columns": lambda df: df.select("id", cf.now(), cf.rand(), cf.uuid()),
    "columns behind a shuffle": lambda df: df.repartition(3).select(
        "id", cf.now(row_key="id"), cf.rand(row_key="id"), cf.uuid(row_key="id")
    ),
    "seeded numbers": lambda df: df.select("id", cf.rand(7)),
    "map_in_arrow": lambda df: clonos.map_in_arrow(df, stamp_arrow, "t long, r double"),
    "map_in_pandas": lambda df: clonos.map_in_pandas(df, stamp_pandas, "id long, t long"),
}


def stamp_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        times = [clonos.time_ns() for _ in range(batch.num_rows)]
        drawn = [clonos.random.random() for _ in range(batch.num_rows)]
        yield pa.RecordBatch.from_pydict({"t": times, "r": drawn})


def stamp_pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(t=clonos.time_ns())


@pytest.mark.parametrize("name", QUERIES)
def test_the_second_run_replays_the_first(session: Any, spark: Any, name: str) -> None:
    rows = spark.range(0, ROWS, 1, 4)
    with session.epoch(name):
        first = QUERIES[name](rows).collect()
        live = session.stats().totals.live
        second = QUERIES[name](rows).collect()
        assert sorted(map(repr, first)) == sorted(map(repr, second))
        assert session.stats().totals.live == live, "nothing ran live the second time"
    if name != "no rows":
        assert first


def test_a_seed_gives_the_same_numbers_in_another_epoch(spark: Any) -> None:
    rows = spark.range(0, ROWS, 1, 2)
    first = rows.select("id", cf.rand(7)).collect()
    assert rows.select("id", cf.rand(7)).collect() == first
    assert rows.select("id", cf.rand(8)).collect() != first
    assert len({row[1] for row in first}) == ROWS


def test_an_error_of_a_worker_is_found_on_the_driver(session: Any, spark: Any) -> None:
    long = "x" * 3000

    def asked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise clonos.errors.ResourceExhausted(f"{len(batch)} {long}", "DISK_BUDGET")
        yield from ()

    refused = clonos.map_in_arrow(spark.range(3), asked, "id long", uid="refusing")
    for action in (refused.collect, lambda: refused.write.format("noop").mode("append").save()):
        with pytest.raises(Exception, match="DISK_BUDGET") as raised:
            action()
        found = clonos.errors.find(raised.value)
        assert isinstance(found, clonos.errors.ResourceExhausted)
        assert found.condition == "DISK_BUDGET"
        assert found.message.endswith("x")
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()

    def write(batch: Any, _number: int) -> None:
        clonos.map_in_arrow(batch, asked, "id long", uid="refusing").collect()

    query = stream.writeStream.foreachBatch(session.foreach_batch(write)).start()
    with pytest.raises(Exception, match="DISK_BUDGET") as raised:
        query.awaitTermination(180)
    for exc in (raised.value, query.exception()):
        found = clonos.errors.find(exc)
        assert found is not None
        assert found.condition == "DISK_BUDGET"


def test_with_plain_values_it_is_the_plain_call(spark: Any) -> None:
    assert spark is not None, "a session is active"

    @causal("long", uid="plus")
    def plus(left: int, right: int = 1) -> int:
        return left + right

    assert plus(4) == 5
    assert plus(4, right=2) == 6
    for column in (plus("id"), plus(sf.col("id")), plus("id", right="id"), of_none()):
        assert isinstance(column, Column)


def test_an_epoch_that_was_committed_begins_anew(session: Any, spark: Any) -> None:
    rows = spark.range(0, ROWS, 1, 2).select("id", by_row("id"))
    with session.epoch("daily"):
        first = rows.collect()
    with session.epoch("daily"):
        assert rows.collect() != first
    assert not session.stats().tasks


def test_an_epoch_that_failed_keeps_its_log(session: Any, spark: Any) -> None:
    rows = spark.range(0, ROWS, 1, 2).select("id", by_row("id"))

    def fail() -> None:
        with session.epoch("failing"):
            first.extend(rows.collect())
            raise KeyError

    first: list[Any] = []
    with pytest.raises(KeyError):
        fail()
    with session.epoch("failing"):
        assert rows.collect() == first


def test_sql_finds_a_registered_function(session: Any, spark: Any) -> None:
    spark.udf.register("scored", by_row)
    with session.epoch("sql"):
        first = spark.sql("select id, scored(id) from range(20)").collect()
        assert spark.sql("select id, scored(id) from range(20)").collect() == first


def test_without_attach_it_is_the_plain_udf_and_a_warning(plain_spark: Any) -> None:
    fresh = causal("long", uid="not attached")(lambda n: n + 1)
    with pytest.warns(UserWarning, match="clonos.attach") as warned:
        rows = plain_spark.range(3).select(fresh("id").alias("n")).collect()
    assert [row.n for row in rows] == [1, 2, 3]
    assert len([w for w in warned if "clonos" in str(w.message)]) == 1


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (
            lambda row: row + 1.0,
            lambda row: row + 2.0,
            ["code", "allow_code_change", "this changed: its code"],
        ),
        (lambda row: row + 1.0, None, ["recorded", "asked", "row"]),
    ],
    ids=["changed code", "changed rows"],
)
def test_a_change_is_refused(
    session: Any, spark: Any, tmp_path: Path, *, first: Any, second: Any, words: list[str]
) -> None:
    from pyspark.errors import PySparkException

    file = tmp_path / "numbers.txt"

    def run(fn: Any, begin: int) -> None:
        scored = causal("double", uid="changing")(fn)
        # What no plan tells: a query with other numbers in it is another query.
        file.write_text("\n".join(map(str, range(begin, begin + ROWS))))
        numbers = spark.read.text(str(file)).selectExpr("cast(value AS int) AS id")
        numbers.select(scored("id")).collect()

    with contextlib.suppress(ZeroDivisionError), session.epoch("changed"):
        run(first, 100)
        _ = 1 / 0
    with pytest.raises(PySparkException) as refused, session.epoch("changed"):
        run(second or first, 100 if second else 130)
    text = str(refused.value)
    for word in ["ReplayDivergence", "changing", "epoch changed", "partition", *words]:
        assert word in text


@pytest.mark.parametrize("calls", [1, 3], ids=["fewer", "more"])
def test_another_number_of_services_is_refused(session: Any, spark: Any, calls: int) -> None:
    from pyspark.errors import PySparkException

    # The user says that the code is the same, so only the replay can notice.
    def build(count: int) -> Any:
        def ask(_row: Any) -> str:
            return "".join(str(clonos.time_ns()) for _ in range(count))

        return causal("string", uid="asking", record="services", code_version="1")(ask)

    rows = spark.range(0, 10, 1, 1)
    spark.sparkContext.setLocalProperty("clonos.epoch", "services")
    try:
        rows.select(build(2)("id")).collect()
        with pytest.raises(PySparkException) as refused:
            rows.select(build(calls)("id")).collect()
    finally:
        spark.sparkContext.setLocalProperty("clonos.epoch", "")
    for word in ["ReplayDivergence", "asking", "partition 0", "recorded", "asked"]:
        assert word in str(refused.value)


def test_two_streams_at_once_are_not_mixed_up(session: Any, spark: Any, tmp_path: Any) -> None:
    seen: dict[str, list[Any]] = {"left": [], "right": []}

    def start(name: str) -> Any:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
        scored = rows.select("value", by_row("value").alias("v"))

        def keep(batch: Any, _number: int) -> None:
            first = batch.collect()
            # A second action on the batch gets the same answers.
            assert sorted(first) == sorted(batch.collect())
            seen[name].extend(first)

        writer = scored.writeStream.foreachBatch(session.foreach_batch(keep))
        return writer.option("checkpointLocation", str(tmp_path / name)).start()

    queries = [start("left"), start("right")]
    try:
        from clonos import testing

        testing.wait_until(
            lambda: (
                all(len(rows) >= ROWS for rows in seen.values())
                or any(query.exception() for query in queries)
            ),
            "three batches of both streams",
        )
    finally:
        for query in queries:
            query.stop()
    assert all(query.exception() is None for query in queries)
    values = [row.v for rows in seen.values() for row in rows]
    assert len(set(values)) == len(values), "each row of each stream has a value of its own"


def test_rows_are_fetched_one_partition_at_a_time_and_answered_once(
    spark: Any, tmp_path: Path
) -> None:
    """Spark ends the execution of ``toLocalIterator`` before its jobs, which may take long."""
    calls = str(tmp_path / "calls")

    @causal("long", uid="fetched")
    def slow(row: int) -> int:
        time.sleep(0.05)
        with Path(calls).open("a") as file:
            file.write(f"{row}\n")
        return row

    rows = spark.range(0, 100, 1, 2).select(slow("id").alias("v")).toLocalIterator()
    assert sorted(row.v for row in rows) == list(range(100))
    assert len(Path(calls).read_text().split()) == 100


def test_who_takes_rows_slowly_has_one_answer_all_the_same(spark: Any) -> None:
    """Between two partitions of ``toLocalIterator`` Spark has nothing to do."""

    @causal("double", per="value")
    def draw(one: int) -> float:
        return random.random() + one

    rows = spark.range(0, 4, 1, 4).select(draw((sf.col("id") * 0).alias("one")).alias("v"))
    values = set()
    # Also if it does not go by its name.
    spark.sparkContext.setJobDescription("slowly")
    try:
        for row in rows.toLocalIterator():
            values.add(row.v)
            time.sleep(2.5 * EXECUTION_POLL_SECONDS)
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", None)
    assert len(values) == 1
