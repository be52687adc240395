"""`exchange` on real Spark: any schema, batch and streaming, run twice in one epoch."""

from __future__ import annotations

import datetime as dt
import decimal
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PythonException

import clonos
from clonos.errors import ConfigError

pytestmark = pytest.mark.timeout(180)
# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NESTED = """
    id int, name string, amount decimal(20, 4), day date, at timestamp, plain timestamp_ntz,
    raw binary, flag boolean, ratio double, tags array<string>, more map<string, int>,
    inner struct<x: int, y: array<double>>, small tinyint, nothing string
"""


def row(n: int) -> tuple[Any, ...]:
    if n % 7 == 0:
        return (n, *([None] * 13))
    return (
        n,
        f"name {n % 5}",
        decimal.Decimal(n) / 8,
        dt.date(2026, 1, 1) + dt.timedelta(days=n),
        dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC) + dt.timedelta(seconds=n),
        dt.datetime(2026, 1, 1, 12) + dt.timedelta(seconds=n),
        bytes([n % 256]),
        n % 2 == 0,
        n / 3,
        [f"t{n}"] * (n % 3),
        {f"k{n}": n},
        (n, [n / 2, None]),
        n % 100,
        None,
    )


def dice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Draw a number for each row, and say which task did."""
    for batch in batches:
        drawn = pa.array([clonos.random.random() for _ in range(len(batch))])
        columns = [batch.column(0), drawn]
        yield pa.RecordBatch.from_arrays(columns, names=["id", "v"])


def arrival(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Number rows in the order in which they arrive; ask the clock, too."""
    count = 0
    for batch in batches:
        places = pa.array(range(count, count + len(batch)), pa.int64())
        count += len(batch)
        when = pa.array([clonos.time_ns()] * len(batch))
        where = pa.array([TaskContext.get().partitionId()] * len(batch), pa.int32())
        columns = [batch.column("id"), batch.column("v"), places, when, where]
        yield pa.RecordBatch.from_arrays(columns, names=["id", "v", "place", "at", "part"])


ARRIVED = "id long, v double, place long, at long, part int"


def chain(df: Any, partitions: int = 3) -> Any:
    drawn = clonos.map_in_arrow(df, dice, "id long, v double", uid="dice")
    return clonos.map_in_arrow(
        clonos.exchange(drawn, "id", partitions), arrival, ARRIVED, uid="arrival"
    )


def test_every_type_comes_through(spark: Any) -> None:
    df = spark.createDataFrame([row(n) for n in range(200)], NESTED)
    for keys in (["id"], ["name", "day"], ["inner", "tags"], ["amount"], ["at"], ["nothing"], []):
        exchanged = clonos.exchange(df, keys, 3)
        assert exchanged.schema == df.schema
        assert sorted(exchanged.collect()) == sorted(df.collect()), keys


def test_equal_keys_meet_and_nulls_are_equal(spark: Any) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            part = pa.array([TaskContext.get().partitionId()] * len(batch), pa.int32())
            columns = [batch.column("name"), batch.column("ratio"), part]
            yield pa.RecordBatch.from_arrays(columns, names=["name", "ratio", "part"])

    ratios = [0.0, -0.0, float("nan"), None, 1.5]
    rows = [(None if n % 4 == 0 else f"n{n % 4}", ratios[n % 5]) for n in range(400)]
    df = spark.createDataFrame(rows, "name string, ratio double").repartition(4)
    exchanged = clonos.exchange(df, ["name", "ratio"], 5)
    found = defaultdict(set)
    result = clonos.map_in_arrow(exchanged, where, "name string, ratio double, part int")
    for r in result.collect():
        ratio = "nan" if r.ratio != r.ratio else r.ratio
        found[r.name, ratio].add(r.part)
    assert len(found) == 4 * 4, "-0.0 and 0.0 are one key"
    assert all(len(parts) == 1 for parts in found.values())


def test_without_keys_rows_are_dealt_out_in_turn(spark: Any) -> None:
    dealt = clonos.exchange(spark.range(0, 900, 1, 2), [], 3)
    assert dealt.rdd.glom().map(len).collect() == [300, 300, 300]


def test_one_python_task_per_stage(spark: Any, capsys: Any) -> None:
    chain(spark.range(10)).explain()
    plan = capsys.readouterr().out
    assert plan.count("MapInArrow") == 2
    assert plan.count("REPARTITION_BY_NUM") == 1


def test_what_lies_between_can_be_asked_for(spark: Any) -> None:
    drawn = clonos.map_in_arrow(spark.range(30), dice, "id long, v double", uid="between")
    exchanged = clonos.exchange(drawn, "id", 2)
    assert drawn.filter("id < 10").count() == 10
    assert exchanged.filter("id < 10").count() == 10


@pytest.mark.parametrize("policy", ["availability", "eager", "epoch", "off"])
def test_the_same_epoch_again_gives_the_same_rows(plain_spark: Any, policy: str) -> None:
    with clonos.attach(plain_spark, spill_policy=policy) as session, session.epoch("again"):
        first = sorted(chain(plain_spark.range(0, 3_000, 1, 4)).collect())
        # Another DataFrame: Spark would use the shuffle files of the same one again.
        assert sorted(chain(plain_spark.range(0, 3_000, 1, 4)).collect()) == first
        totals = session.stats()["totals"]
        assert totals["ran_replayed"] == (7 if policy == "off" else 3)
        assert totals["resent"] == (0 if policy == "off" else 4)


def test_frames_may_be_compressed(plain_spark: Any) -> None:
    with clonos.attach(plain_spark, compression="lz4", sharing_depth="full"):
        assert chain(plain_spark.range(500)).count() == 500


def test_a_function_may_stop_before_its_input_ends(spark: Any) -> None:
    def first_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches).slice(0, 1)

    df = clonos.exchange(spark.range(0, 1000, 1, 3), "id", 2)
    assert clonos.map_in_arrow(df, first_batch, "id long").count() == 2


def test_an_empty_input_is_whole(spark: Any) -> None:
    assert chain(spark.range(0)).count() == 0
    nothing = spark.createDataFrame([], "id long")
    assert clonos.exchange(nothing, "id", 4).collect() == []


def test_without_a_session_it_works_and_warns() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    assert spark is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert chain(spark.range(100)).count() == 100
    assert any("call clonos.attach" in str(warning.message) for warning in caught)


def test_columns_are_taken_by_name_and_cast(spark: Any) -> None:
    def other_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names = pa.array(["x"] * len(batch)).dictionary_encode()
            columns = [names, batch.column(0).cast(pa.int32())]
            yield pa.RecordBatch.from_arrays(columns, names=["name", "id"])

    df = clonos.map_in_arrow(spark.range(50), other_order, "id long, name string")
    rows = clonos.exchange(df, "name", 2).collect()
    assert sorted(r.id for r in rows) == list(range(50))
    assert {r.name for r in rows} == {"x"}


def test_a_column_that_was_declared_and_not_returned_is_named(spark: Any) -> None:
    df = clonos.map_in_arrow(spark.range(5), lambda batches: batches, "id long, missing string")
    with pytest.raises(PythonException, match="column 'missing' is declared and not returned"):
        clonos.exchange(df, "id", 2).collect()


def test_bad_arguments_are_refused(spark: Any) -> None:
    df = spark.range(5)
    with pytest.raises(ConfigError, match="key 'nope' is not one of the columns"):
        clonos.exchange(df, "nope", 2)
    for partitions in (0, -1, 2**20 + 1, True):
        with pytest.raises(ConfigError, match="partitions="):
            clonos.exchange(df, "id", partitions)
    with pytest.raises(ConfigError, match="spill_policy"):
        clonos.attach(spark, spill_policy="sometimes")
    with pytest.raises(ConfigError, match="clock_resolution"):
        clonos.attach(spark, clock_resolution=-1)


def test_in_a_stream(plain_spark: Any, tmp_path: Path) -> None:
    """As a plain streaming DataFrame, and inside foreachBatch."""
    with clonos.attach(plain_spark) as session:
        source = plain_spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100)
        numbers = source.load().selectExpr("value as id")
        seen: list[int] = []

        def write(batch: Any, _number: int) -> None:
            exchanged = clonos.exchange(batch.select("id"), "id", 2, uid="inner")
            seen.extend(r.id for r in exchanged.collect())

        query = (
            chain(numbers, 2)
            .writeStream.foreachBatch(session.foreach_batch(write))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        while len(seen) < 300 and query.isActive:
            query.awaitTermination(0.2)
        query.stop()
        assert query.exception() is None
        assert sorted(seen) == list(range(len(seen)))


def test_rows_of_one_sender_keep_their_order(spark: Any) -> None:
    df = clonos.exchange(spark.range(0, 20_000, 1, 1), "id", 3)
    for partition in df.rdd.glom().collect():
        ids = [r.id for r in partition]
        assert ids == sorted(ids)
