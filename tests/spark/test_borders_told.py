"""What the driver's agent is told of the borders between the tasks of a stage, as Spark runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import seen_borders
from cuts import by_id, facts, settings
from epochs import drawn
from pyspark import cloudpickle
from pyspark.sql import functions
from seen_borders import asked, cut, named, placed, plain

from clonos._driver import compiled

# Few: what decides where they are is all that is looked at.
ROWS = 3_000
pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])
told, session, borders = seen_borders.told, seen_borders.session, seen_borders.borders


def merged(df: Any, key: str) -> Any:
    """Groups, with those of other rows beside them: where the group is, the others are."""
    others = df.groupBy(key).agg(functions.max("text").alias("longest")).hint("merge")
    groups = df.groupBy(key).agg(functions.max("id").alias("id"))
    return groups.join(others, key, "left")


def among_bytes(name: str, count: int) -> Any:
    values = ", ".join(f"X'{number:02x}'" for number in range(count))
    return functions.expr(f"cast({name} as binary) in ({values})")


def view(df: Any) -> str:
    df.createOrReplaceTempView("beside")
    return "beside"


SAME: dict[str, Callable[[Any], Any]] = {
    "groups with others beside them": lambda df: merged(df, "k"),
    "a lambda": lambda df: df.repartition(
        3, functions.transform(functions.array("k"), lambda x: x % 7)
    ),
    "an expression": lambda df: df.repartition(3, functions.expr("k % 7 in (1, 2, 3)")),
    "many texts": lambda df: df.repartition(3, among_bytes("text", 20)),
    "a plain function": lambda df: df.repartition(3, plain("k")),
    "a common table": lambda df: df.sparkSession.sql(
        f"with t as (select * from {view(df)}) select /*+ repartition(3, k) */ * from t"
    ),
    "rows": lambda df: df,
    "hash": lambda df: df.repartition(3, "k"),
    "groups": lambda df: df.groupBy("id", "k").agg(functions.max("text").alias("text")),
    "sort of few rows": lambda df: df.where("id < 300").orderBy("id"),
    "coalesce": lambda df: df.repartition(5, "k").coalesce(2),
    "union": lambda df: df.union(df),
    "merge": lambda df: df.hint("merge").join(
        df.selectExpr("id as other"), functions.expr("id = other")
    ),
    "product": lambda df: (
        df.where("id < 300")
        .repartition(3, "k")
        .hint("shuffle_replicate_nl")
        .crossJoin(df.sparkSession.range(0, 3, 1, 1).selectExpr("id as one"))
    ),
}


@pytest.mark.parametrize("by", SAME)
def test_borders_are_the_same_whichever_columns_are_read(
    spark: Any, borders: Callable[[Any], int], by: str
) -> None:
    df = facts(spark, ROWS)
    # Which partitions are read together depends on their bytes.
    with settings(spark, spark__sql__adaptive__coalescePartitions__enabled="false"):
        first = borders(asked(SAME[by](df)))
        assert first & 1 == 0
        assert placed(first)
        assert borders(asked(SAME[by](df)).select("id", "v")) == first
        again = SAME[by](facts(spark, ROWS)).where("id >= 0").withColumn("v", drawn("id"))
        filtered = borders(again.selectExpr("v + 1"))
        assert filtered != first
        assert cut(filtered) == cut(first)


def wide(df: Any, last: str) -> list[Any]:
    """More columns than Spark says."""
    return [functions.expr(f"k % {n}") for n in range(2, 32)] + [functions.col(last)]


OTHER: dict[str, Callable[[Any], Any]] = {
    "many columns": lambda df: df.repartition(3, *wide(df, "id")),
    "many other columns": lambda df: df.repartition(3, *wide(df, "k")),
    "a function of k": lambda df: df.repartition(3, plain("k")),
    "a function of id": lambda df: df.repartition(3, plain("id")),
    "a case": lambda df: df.repartition(3, functions.expr("case when k < 9 then id else k end")),
    "another case": lambda df: df.repartition(
        3, functions.expr("case when k < 9 then k else id end")
    ),
    "many values": lambda df: df.repartition(3, functions.col("k").isin(*range(20))),
    "other values": lambda df: df.repartition(3, functions.col("k").isin(*range(1, 21))),
    "a name with a number": lambda df: df.withColumnsRenamed({"k": "k#1"}).repartition(3, "`k#1`"),
    "another such name": lambda df: df.withColumnsRenamed({"text": "k#2"}).repartition(3, "`k#2`"),
    "another number": lambda df: df.repartition(4, "k"),
    "another column": lambda df: df.repartition(3, "id"),
    "fewer tasks": lambda df: df.repartition(3, "k").coalesce(2),
    "no shuffle": lambda df: df,
    "a range": lambda df: df.repartitionByRange(3, "k"),
    "other borders": lambda df: df.where("k < 500").repartitionByRange(3, "k"),
    "round robin": lambda df: df.repartition(3),
    "one after another": lambda df: df.repartition(3, "k").union(df),
    "another of the same name": lambda df: (
        df.alias("a")
        .join(
            functions.broadcast(df.selectExpr("id as j", "k").alias("b")), functions.expr("id = j")
        )
        .repartition(3, functions.expr("b.k"))
    ),
}


def test_thirty_joins_by_one_key_take_no_longer_than_their_number(
    spark: Any, borders: Callable[[Any], int]
) -> None:
    # Each stands in the next, in one stage. Looked at twice at each step they would take hours.
    groups = df = facts(spark, ROWS).groupBy("k").agg(functions.max("id").alias("id"))
    for number in range(30):
        value = functions.max("id").alias(f"value{number}")
        df = df.join(facts(spark, ROWS).groupBy("k").agg(value).hint("merge"), "k")
    with settings(spark, spark__sql__adaptive__coalescePartitions__enabled="false"):
        assert cut(borders(asked(df))) == cut(borders(asked(groups)))


def test_subqueries_in_one_another_are_looked_at_once(
    spark: Any, borders: Callable[[Any], int]
) -> None:
    facts(spark, ROWS).createOrReplaceTempView("nested")
    query = "select id from nested"
    for _ in range(27):
        query = f"select id from nested where id in ({query})"
    assert placed(borders(asked(spark.sql(query))))


@pytest.mark.parametrize("eager", [False, True])
def test_a_checkpoint_has_the_same_before_it_is_made(
    spark: Any, borders: Callable[[Any], int], eager: bool
) -> None:
    df = facts(spark, ROWS).repartition(3, "k").localCheckpoint(eager)
    first = borders(asked(df))
    assert placed(first)
    assert borders(asked(df).select("id", "v")) == first


def test_borders_are_others_where_rows_are_cut_otherwise(
    spark: Any, borders: Callable[[Any], int]
) -> None:
    df = facts(spark, ROWS)
    found = [borders(asked(by(df))) for by in (SAME["hash"], *OTHER.values())]
    assert len({placed(one) for one in found}) == len(found)
    # All but those by another column of the same name, which each function has.
    assert len({named(one) for one in found}) == len(found) - 2


def test_rows_dealt_round_robin_may_be_elsewhere_each_time(
    spark: Any, borders: Callable[[Any], int]
) -> None:
    df = asked(facts(spark, ROWS).repartition(3))
    found = {borders(df), borders(df.select("id", "v"))}
    assert len(found) == 2
    assert all(one & 1 for one in found)


DRAWN: dict[str, Callable[[Any], Any]] = {
    "a salt": lambda df: df.withColumn("salt", functions.expr("floor(rand() * 8)")).repartition(
        3, "salt"
    ),
    "a number": lambda df: df.repartition(3, functions.rand(7)),
    "a case": lambda df: df.repartition(
        3, functions.expr("case when k % 2 = 0 then k else floor(rand() * 8) end")
    ),
    "a place": lambda df: df.repartition(3, functions.monotonically_increasing_id()),
}


@pytest.mark.parametrize("by", DRAWN)
def test_where_rows_are_by_what_is_drawn_depends_on_where_they_were(
    spark: Any, borders: Callable[[Any], int], by: str
) -> None:
    one, other = (DRAWN[by](facts(spark, ROWS).repartition(3, column)) for column in ("id", "k"))
    found = {borders(asked(one)), borders(asked(other))}
    assert len({named(each) for each in found}) == 2
    assert all(each & 1 for each in found)


def test_what_a_causal_function_says_is_drawn_once(
    spark: Any, session: Any, told: list[int | None]
) -> None:
    df = asked(facts(spark, ROWS)).repartition(3, "v").withColumn("w", drawn("v"))
    with session.epoch("drawn once"):
        df.collect()
    assert len(told) == 2
    assert all(one is not None and one & 1 == 0 for one in told)


def test_borders_of_a_sample_are_told(spark: Any, borders: Callable[[Any], int]) -> None:
    # Many more rows than Spark looks at.
    df = facts(spark, ROWS).where("id >= 0")
    with settings(spark, spark__sql__execution__rangeExchange__sampleSizePerPartition="10"):
        ranges = [df.repartitionByRange(3, functions.expr("hash(id)")) for _ in range(5)]
        found = {borders(asked(one)) for one in ranges}
    assert len(found) > 1
    assert all(one & 1 == 0 for one in found)


BESIDE: dict[str, Callable[[Any, Any], Any]] = {
    "a frame to the left": lambda d, other: other.crossJoin(d),
    "a cached frame": lambda d, other: other.cache().crossJoin(d),
    "a join with itself": lambda d, _: d.alias("one").join(
        d.alias("other"), functions.expr("one.id = other.id")
    ),
    "another column of the same name": lambda d, other: d.crossJoin(other.selectExpr("one as k")),
    "a subquery": lambda d, other: other.where(f"one in (select v from {view(d)})"),
    "a common table": lambda d, _: d.sparkSession.sql(
        f"with t as (select * from {view(d)}) select id, v from t"
    ),
    "a cache": lambda d, _: d.select("id", "v").cache(),
    "a scalar subquery": lambda d, other: other.where(f"one < (select max(v) from {view(d)})"),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_what_stands_beside_a_frame_does_not_move_its_rows(
    spark: Any, borders: Callable[[Any], int], beside: str
) -> None:
    d = asked(facts(spark, ROWS).repartition(3, "k"))
    other = spark.range(0, 2, 1, 1).selectExpr("id as one")
    first = borders(d)
    assert placed(first)
    assert borders(BESIDE[beside](d, other)) == first


def test_a_query_that_writes_is_told_the_same(
    spark: Any, session: Any, borders: Callable[[Any], int], told: list[int | None]
) -> None:
    d = asked(facts(spark, ROWS).repartition(3, "k"))
    first = borders(d)
    told.clear()
    try:
        with session.epoch("written"):
            d.write.mode("overwrite").saveAsTable("told_written")
    finally:
        spark.sql("drop table if exists told_written")
    assert set(told) == {first}


def test_what_a_stream_asks_is_told_to_its_batch_function(
    spark: Any, session: Any, told: list[int | None], tmp_path: Path
) -> None:
    folder = str(tmp_path / "facts")
    facts(spark, ROWS).where("id < 1000").write.parquet(folder)

    def run(batch: Any, _number: int) -> None:
        batch.collect()
        batch.select("id", "v").collect()

    stream = spark.readStream.schema("id long, k long, text string").parquet(folder)
    asking = asked(stream.repartition(3, "k"))
    writer = asking.writeStream.foreachBatch(run).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    # In the plan of the batch is only what the stream has computed.
    assert len(told) == 2
    assert len(set(told)) == 1
    assert told[0] is not None
    assert placed(told[0])


def packed(spark: Any, folder: str) -> Iterator[Any]:
    """Four files that two tasks read, two and two of them, or three and one."""
    if not Path(folder).exists():
        facts(spark, ROWS).repartition(4, "id").write.parquet(folder)
    largest = max(file.stat().st_size for file in Path(folder).glob("*.parquet"))
    for files in (2, 3):
        with settings(
            spark,
            spark__sql__files__maxPartitionBytes=str(files * (largest + 1)),
            spark__sql__files__openCostInBytes="1",
            spark__sql__files__minPartitionNum="1",
        ):
            read = spark.read.parquet(folder)
            assert read.rdd.getNumPartitions() == 2
            yield read


def test_files_that_are_packed_otherwise_are_told(
    spark: Any, borders: Callable[[Any], int], tmp_path: Path
) -> None:
    found = [
        (borders(asked(read)), borders(asked(read).select("id", "v")))
        for read in packed(spark, str(tmp_path / "facts"))
    ]
    assert all(one == other for one, other in found)
    assert len(set(found)) == 2


def test_what_cannot_be_read_is_said_once(
    spark: Any,
    session: Any,
    told: list[int | None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise LookupError("not in this Spark")

    monkeypatch.setattr(compiled, "made", refused)
    df = asked(spark.range(0, 100, 1, 2))
    with session.epoch("no borders"):
        first = by_id(df)
        assert by_id(df) == first
    assert told == [None, None]
    said = [record.message for record in caplog.records]
    assert sum("cuts the rows of a stage" in one for one in said) == 1
