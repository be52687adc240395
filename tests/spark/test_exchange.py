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
from pyspark.sql import functions as sf

import clonos
from clonos.errors import ConfigError, UnsupportedType

pytestmark = pytest.mark.timeout(360)
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
        clonos.exchange(drawn, partitions, "id"), arrival, ARRIVED, uid="arrival"
    )


def test_every_type_comes_through(spark: Any) -> None:
    df = spark.createDataFrame([row(n) for n in range(200)], NESTED)
    for keys in (["id"], ["name", "day"], ["inner", "tags"], ["amount"], ["at"], ["nothing"], []):
        exchanged = clonos.exchange(df, 3, *keys)
        assert exchanged.schema == df.schema
        assert sorted(exchanged.collect()) == sorted(df.collect()), keys


@pytest.mark.parametrize("columns", ["null v", "named_struct('v', null) s", "struct() s"])
def test_rows_of_nothing_come_through(spark: Any, columns: str) -> None:
    df = spark.range(0, 30, 1, 2).selectExpr(columns)
    assert sorted(clonos.exchange(df, 3).collect()) == sorted(df.collect())


def test_void_that_is_never_null_is_named(spark: Any) -> None:
    df = spark.range(3).selectExpr("id", "array() e")
    with pytest.raises(UnsupportedType, match=r"e:array<void>.*cast\(c as array<int>\)"):
        clonos.exchange(df, 3, "id").collect()


def test_names_may_have_dots_and_quotes(spark: Any) -> None:
    names = ["user.id", "a`b", "n"]
    df = spark.range(20).selectExpr("id % 3", "id", "-id").toDF(*names)
    for keys in (["user.id"], ["a`b", "n"], [sf.col("`user.id`") + 1]):
        exchanged = clonos.exchange(df, 3, *keys)
        assert exchanged.columns == names
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
    exchanged = clonos.exchange(df, 5, "name", "ratio")
    found = defaultdict(set)
    result = clonos.map_in_arrow(exchanged, where, "name string, ratio double, part int")
    for r in result.collect():
        ratio = "nan" if r.ratio != r.ratio else r.ratio
        found[r.name, ratio].add(r.part)
    assert len(found) == 4 * 4, "-0.0 and 0.0 are one key"
    assert all(len(parts) == 1 for parts in found.values())


def test_without_keys_rows_are_dealt_out_in_turn(spark: Any) -> None:
    dealt = clonos.exchange(spark.range(0, 900, 1, 2), 3)
    assert dealt.rdd.glom().map(len).collect() == [300, 300, 300]


def where_rows_are(df: Any) -> dict[int, set[int]]:
    """Ids of the rows in each partition."""
    parts = df.rdd.mapPartitionsWithIndex(lambda at, rows: [(at, {row.id for row in rows})])
    return dict(parts.collect())


def test_it_is_called_as_repartition_is(spark: Any) -> None:
    df = spark.range(0, 60, 1, 2)
    by_name = where_rows_are(clonos.exchange(df, 3, "id"))
    assert where_rows_are(clonos.exchange(df, "id")) == by_name, "spark.sql.shuffle.partitions is 3"
    assert where_rows_are(clonos.exchange(df, 3, df.id)) == by_name
    assert where_rows_are(clonos.exchange(df, sf.col("id"))) == by_name
    by_tens = clonos.exchange(df, 4, (sf.col("id") / 10).cast("int"))
    assert by_tens.columns == ["id"]
    for ids in where_rows_are(by_tens).values():
        for tens in {n // 10 for n in ids}:
            assert set(range(10 * tens, 10 * tens + 10)) <= ids


@pytest.mark.parametrize("keep", [lambda df: df.cache(), lambda df: df.persist()])
def test_a_cached_dataframe_is_read_and_not_made_again(
    spark: Any, tmp_path: Path, keep: Any
) -> None:
    calls = tmp_path / "calls"

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with calls.open("a") as file:
                file.write("x" * len(batch))
            yield batch

    drawn = clonos.map_in_arrow(spark.range(0, 50, 1, 2), counted, "id long", uid=f"c{tmp_path}")
    kept = keep(clonos.exchange(drawn, 2, "id"))
    assert kept.count() == 50
    numbered = clonos.map_in_arrow(kept, lambda batches: batches, "id long", uid="behind")
    assert numbered.count() == 50
    assert clonos.exchange(keep(drawn), 3, "id").count() == 50
    assert clonos.exchange(drawn, 4, "id").count() == 50
    kept.unpersist()
    drawn.unpersist()
    assert len(calls.read_text()) == 100, "once for each of the two that are cached"


def test_one_python_task_per_stage(spark: Any, capsys: Any) -> None:
    chain(spark.range(10)).explain()
    plan = capsys.readouterr().out
    assert plan.count("MapInArrow") == 2
    assert plan.count("REPARTITION_BY_NUM") == 1


def test_what_lies_between_can_be_asked_for(spark: Any) -> None:
    drawn = clonos.map_in_arrow(spark.range(30), dice, "id long, v double", uid="between")
    exchanged = clonos.exchange(drawn, 2, "id")
    assert drawn.filter("id < 10").count() == 10
    assert exchanged.filter("id < 10").count() == 10


@pytest.mark.parametrize("policy", ["availability", "eager", "epoch", "off"])
def test_the_same_epoch_again_gives_the_same_rows(plain_spark: Any, policy: str) -> None:
    with clonos.attach(plain_spark, spill_policy=policy) as session, session.epoch("again"):
        first = sorted(chain(plain_spark.range(0, 3_000, 1, 4)).collect())
        # Another DataFrame: Spark would use the shuffle files of the same one again.
        assert sorted(chain(plain_spark.range(0, 3_000, 1, 4)).collect()) == first
        totals = session.stats().totals
        assert totals.ran_replayed == (7 if policy == "off" else 3)
        assert totals.resent == (0 if policy == "off" else 4)


def test_frames_may_be_compressed(plain_spark: Any) -> None:
    with clonos.attach(plain_spark, compression="lz4", sharing_depth="full"):
        assert chain(plain_spark.range(500)).count() == 500


def test_a_function_may_stop_before_its_input_ends(spark: Any) -> None:
    def first_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches).slice(0, 1)

    df = clonos.exchange(spark.range(0, 1000, 1, 3), 2, "id")
    assert clonos.map_in_arrow(df, first_batch, "id long").count() == 2


def test_an_empty_input_is_whole(spark: Any) -> None:
    assert chain(spark.range(0)).count() == 0
    nothing = spark.createDataFrame([], "id long")
    assert clonos.exchange(nothing, 4, "id").collect() == []


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
    rows = clonos.exchange(df, 2, "name").collect()
    assert sorted(r.id for r in rows) == list(range(50))
    assert {r.name for r in rows} == {"x"}


def test_a_column_that_was_declared_and_not_returned_is_named(spark: Any) -> None:
    df = clonos.map_in_arrow(spark.range(5), lambda batches: batches, "id long, missing string")
    with pytest.raises(PythonException, match="column 'missing' is declared and not returned"):
        clonos.exchange(df, 2, "id").collect()


def test_keys_are_named_as_spark_resolves_them(spark: Any) -> None:
    df = spark.range(40).selectExpr("id", "id % 3 c", "id `a.b`", "struct(id % 5 q) st")
    for key in ("C", "`a.b`", "st.q", "ST.Q"):
        exchanged = clonos.exchange(df, 3, key)
        assert exchanged.columns == df.columns
        assert sorted(exchanged.collect()) == sorted(df.collect()), key
    homes = where_rows_are(clonos.exchange(df, 3, "st.q"))
    for rows in homes.values():
        assert {at for at in range(40) if at % 5 in {row % 5 for row in rows}} == rows
    for key in ("*", "st.*", "st.none"):
        with pytest.raises(ConfigError, match="is not one of the columns"):
            clonos.exchange(df, 3, key)


def test_bad_arguments_are_refused(spark: Any) -> None:
    df = spark.range(5)
    with pytest.raises(ConfigError, match="key 'nope' is not one of the columns"):
        clonos.exchange(df, 2, "nope")
    for partitions in (0, -1, 2**20 + 1, True):
        with pytest.raises(ConfigError, match="n="):
            clonos.exchange(df, partitions, "id")
    with pytest.raises(ConfigError, match="the number of partitions comes before"):
        clonos.exchange(df, "id", 2)
    with pytest.raises(ConfigError, match="2 columns are called 'id'"):
        clonos.exchange(df.select("id", "id"), 2, "id")
    for setting in ({"io_timeout": -1}, {"guarantee": "at_most_once"}):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            clonos.attach(spark, **setting)
    with pytest.raises(ConfigError, match="spill_policy"):
        clonos.attach(spark, spill_policy="sometimes")
    with pytest.raises(ConfigError, match="clock_resolution"):
        clonos.attach(spark, clock_resolution=-1)


FOLDED = "string collate UTF8_LCASE"


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (FOLDED, "UTF8_BINARY"),
        (f"array<struct<a: int, b: {FOLDED}>>", "UTF8_BINARY"),
        ("map<string, int>", "map_entries"),
        ("struct<a: array<map<int, int>>>", "map_entries"),
        ("variant", "variant_get"),
    ],
)
def test_keys_of_which_equal_ones_differ_are_refused(spark: Any, kind: str, advice: str) -> None:
    df = spark.range(3).selectExpr("id", f"cast(null as {kind}) as odd")
    shown = df.schema["odd"].dataType.simpleString()
    for key in ("odd", sf.col("odd"), sf.coalesce("odd", "odd")):
        with pytest.raises(ConfigError, match=r"odd.* is of type") as refused:
            clonos.exchange(df, 4, "id", key)
        assert shown in str(refused.value)
        assert advice in str(refused.value)
    # As what is brought along they are as good as any.
    assert clonos.exchange(df, 4, "id").count() == 3


def test_what_is_advised_in_place_of_such_keys_brings_equal_ones_together(spark: Any) -> None:
    rows = spark.range(40).selectExpr(
        "if(id % 2 = 0, 'Word', 'wORD') collate UTF8_LCASE as word",
        "if(id % 2 = 0, map('a', 1, 'b', 2), map('b', 2, 'a', 1)) as more",
    )
    word = sf.collate(sf.lower("word"), "UTF8_BINARY")
    more = sf.array_sort(sf.map_entries("more"))
    for key in (word, more):
        parts = clonos.exchange(rows, 64, key).select(sf.spark_partition_id()).distinct()
        assert parts.count() == 1


@pytest.mark.classic
def test_in_a_stream(plain_spark: Any, tmp_path: Path) -> None:
    """As a plain streaming DataFrame, and inside foreachBatch."""
    with clonos.attach(plain_spark) as session:
        source = plain_spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100)
        numbers = source.load().selectExpr("value as id")
        seen: list[int] = []

        def write(batch: Any, _number: int) -> None:
            exchanged = clonos.exchange(batch.select("id"), 2, "id", uid="inner")
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
    df = clonos.exchange(spark.range(0, 20_000, 1, 1), 3, "id")
    for partition in df.rdd.glom().collect():
        ids = [r.id for r in partition]
        assert ids == sorted(ids)
