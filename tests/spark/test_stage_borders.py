"""Queries of one epoch whose rows Spark cuts into as many tasks by other borders, as it runs them.

No plan of theirs differs below the function: how frames are joined, and which partitions of a
shuffle are read together, Spark decides by what each query reads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from epochs import drawn
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions

import clonos
from clonos import causal, errors
from clonos._driver import attach, compiled
from clonos._driver.borders import stage_borders

# So many that adaptive execution cuts them into several tasks.
ROWS = 60_000
pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Borders that the driver's agent is told, one after the other."""
    found: list[int | None] = []

    def noted(*arguments: Any) -> Any:
        of_use = stage_borders(*arguments)

        def of_noted(*use: Any) -> int | None:
            found.append(of_use(*use))
            return found[-1]

        return of_noted

    monkeypatch.setattr(attach, "stage_borders", noted)
    return found


@pytest.fixture
def session(plain_spark: Any, told: list[int | None]) -> Iterator[Any]:
    with clonos.attach(plain_spark) as attached:
        yield attached


@pytest.fixture
def borders(session: Any, told: list[int | None]) -> Callable[[Any], int]:
    """Return what gives the borders of a query with one causal function, in an epoch of its own."""
    numbers = count()

    def of_query(df: Any) -> int:
        told.clear()
        with session.epoch(f"borders {next(numbers)}"):
            df.collect()
        # More than one stage may run the function, over the same rows.
        assert len(set(told)) == 1
        assert told[0] is not None
        return told[0]

    return of_query


def named(borders: int) -> int:
    """What is left without the places of columns."""
    return borders % 2**32 // 2


def placed(borders: int) -> int:
    return borders >> 32


def facts(spark: Any) -> Any:
    columns = ("id", "id % 1000 as k", "sha2(cast(id as string), 256) as text")
    return spark.range(0, ROWS, 1, 2).selectExpr(*columns)


def answers(df: Any) -> tuple[int, dict[int, float]]:
    """Of all rows, and how many tasks there were."""
    rows = df.withColumn("task", functions.spark_partition_id()).collect()
    assert len(rows) == ROWS
    return len({row.task for row in rows}), {row.id: row.v for row in rows}


@contextmanager
def settings(spark: Any, **values: str) -> Iterator[None]:
    names = {name.replace("__", "."): value for name, value in values.items()}
    try:
        for name, value in names.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


def test_a_join_that_a_query_does_not_need_moves_its_rows(spark: Any, session: Any) -> None:
    # Each row has at most one other, of which the first query reads nothing: Spark leaves it out.
    others = facts(spark).groupBy("k").agg(functions.max("text").alias("longest")).hint("merge")
    df = facts(spark).join(others, "k", "left").withColumn("v", drawn("id"))
    with (
        settings(spark, spark__sql__shuffle__partitions="2"),
        session.epoch("a join left out"),
    ):
        narrow, narrow_answers = answers(df.select("id", "v"))
        wide, wide_answers = answers(df)
    assert narrow == wide == 2
    assert wide_answers == narrow_answers


def test_a_table_that_is_small_enough_for_one_query_only_moves_its_rows(
    spark: Any, session: Any
) -> None:
    others = facts(spark).selectExpr("id as k", "text as other").where("k < 1000")
    others.write.mode("overwrite").saveAsTable("borders_others")
    try:
        df = facts(spark).join(spark.table("borders_others"), "k").withColumn("v", drawn("id"))
        with (
            settings(
                spark,
                spark__sql__shuffle__partitions="2",
                spark__sql__autoBroadcastJoinThreshold="40000",
                spark__sql__adaptive__autoBroadcastJoinThreshold="-1",
            ),
            session.epoch("small enough"),
        ):
            narrow, narrow_answers = answers(df.select("id", "v"))
            wide, wide_answers = answers(df)
    finally:
        spark.sql("drop table borders_others")
    assert narrow == wide == 2
    assert wide_answers == narrow_answers


@pytest.mark.parametrize("cut", ["sort", "range"])
def test_rows_that_moved_in_do_not_have_the_answers_of_rows_that_moved_out(
    spark: Any, session: Any, cut: str
) -> None:
    # Their arguments are alike, and of no row of the first batch behind a border the mark is known.
    numbers = spark.range(0, ROWS, 1, 2).selectExpr("id", "id % 10 as k").where("id >= 0")
    cuts = {
        "sort": lambda: numbers.orderBy("id"),
        "range": lambda: numbers.repartitionByRange(3, "id"),
    }
    with settings(
        spark,
        spark__sql__execution__rangeExchange__sampleSizePerPartition="5",
        spark__sql__execution__arrow__maxRecordsPerBatch="100",
        spark__sql__adaptive__coalescePartitions__enabled="false",
    ):
        for number in range(4):
            with session.epoch(f"moved in {cut} {number}"):
                df = cuts[cut]().withColumn("v", drawn("k"))
                first, second = (answers(df)[1] for _ in range(2))
            assert second == first
            assert len(set(first.values())) == ROWS


def test_a_shuffle_by_another_column_of_the_same_name_is_another(spark: Any, session: Any) -> None:
    orders = spark.range(0, ROWS, 1, 2).selectExpr("id", "id * 7919 % 5000 as customer")
    customers = spark.range(0, 5000, 1, 2).selectExpr("id", "id * 3 as score")
    notes = orders.groupBy("id").agg(functions.max("customer").alias("note")).hint("merge")
    ranks = customers.groupBy("id").agg(functions.max("score").alias("rank")).hint("merge")
    o, c, n, r = orders.alias("o"), customers.alias("c"), notes.alias("n"), ranks.alias("r")
    joined = (
        o.join(functions.broadcast(c), functions.expr("o.customer = c.id"))
        .join(n, functions.expr("o.id = n.id"), "left")
        .join(r, functions.expr("c.id = r.id"), "left")
    )
    df = joined.selectExpr("o.id", "customer", "score", "note", "rank")
    df = df.withColumn("v", drawn("id"))
    with (
        settings(
            spark,
            spark__sql__shuffle__partitions="2",
            spark__sql__adaptive__coalescePartitions__enabled="false",
        ),
        session.epoch("columns of one name"),
    ):
        # The rows of one are where their order is, of the other where their customer is.
        narrow, narrow_answers = answers(df.select("id", "note", "v"))
        wide, wide_answers = answers(df)
    assert narrow == wide == 2
    assert wide_answers == narrow_answers


WAYS: dict[str, Callable[[Any], Any]] = {
    "files": lambda df: _written(df, "parquet"),
    "no files": lambda df: (df.write.format("noop").mode("overwrite").save(), df)[1],
    "pandas": lambda df: df.sparkSession.createDataFrame(df.toPandas()),
    "checkpoint": lambda df: df.localCheckpoint(),
    "rdd": lambda df: df.sparkSession.createDataFrame(df.rdd.map(tuple), "id long, v double"),
}


def _written(df: Any, kind: str) -> Any:
    df.write.mode("overwrite").format(kind).saveAsTable("borders_written")
    rows = df.sparkSession.table("borders_written").collect()
    df.sparkSession.sql("drop table borders_written")
    return df.sparkSession.createDataFrame(rows, "id long, v double")


@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_read_a_frame_moves_its_rows(spark: Any, session: Any, way: str) -> None:
    # Equal arguments, and marks of other columns: rows are known by their order alone.
    numbers = spark.range(0, 3000, 1, 2).selectExpr("id", "id % 10 as k", "id * 2 as x")
    df = numbers.repartition(3, "x").sortWithinPartitions("id").withColumn("v", drawn("k"))
    with session.epoch(f"by {way}"):
        first = {row.id: row.v for row in df.collect()}
        second = {row.id: row.v for row in WAYS[way](df.select("id", "v")).collect()}
    assert second == first


@causal("double", record="services")
def drawn_in_order(_x: Any) -> float:
    return clonos.random.random()


def test_services_are_refused_where_rows_have_moved(spark: Any, session: Any) -> None:
    others = facts(spark).groupBy("k").agg(functions.max("text").alias("longest")).hint("merge")
    df = facts(spark).join(others, "k", "left").withColumn("v", drawn_in_order("id"))
    with settings(spark, spark__sql__shuffle__partitions="2"), session.epoch("services"):
        narrow, first = answers(df.select("id", "v"))
        assert answers(df.select("id", "v")) == (narrow, first)
        assert narrow == 2
        with pytest.raises(PySparkException) as refused:
            df.collect()
    error = errors.find(refused.value)
    assert isinstance(error, errors.ReplayDivergence)
    assert "other borders" in str(error)


SAME: dict[str, Callable[[Any], Any]] = {
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
OTHER: dict[str, Callable[[Any], Any]] = {
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


def asked(df: Any) -> Any:
    return df.withColumn("v", drawn("id"))


@pytest.mark.parametrize("cut", SAME)
def test_borders_are_the_same_whichever_columns_are_read(
    spark: Any, borders: Callable[[Any], int], cut: str
) -> None:
    df = facts(spark)
    # Which partitions are read together depends on their bytes.
    with settings(spark, spark__sql__adaptive__coalescePartitions__enabled="false"):
        first = borders(asked(SAME[cut](df)))
        assert first & 1 == 0
        assert placed(first)
        assert borders(asked(SAME[cut](df)).select("id", "v")) == first
        again = SAME[cut](facts(spark)).where("id >= 0").withColumn("v", drawn("id"))
        assert borders(again.selectExpr("v + 1")) == first


def test_borders_are_others_where_rows_are_cut_otherwise(
    spark: Any, borders: Callable[[Any], int]
) -> None:
    df = facts(spark)
    found = [borders(asked(cut(df))) for cut in (SAME["hash"], *OTHER.values())]
    assert len({placed(one) for one in found}) == len(found)
    # All but the one by another column of the same name.
    assert len({named(one) for one in found}) >= len(found) - 1


def test_rows_dealt_round_robin_may_be_elsewhere_each_time(
    spark: Any, borders: Callable[[Any], int]
) -> None:
    df = asked(facts(spark).repartition(3))
    found = {borders(df), borders(df.select("id", "v"))}
    assert len(found) == 2
    assert all(one & 1 for one in found)


def test_borders_of_a_sample_are_told(spark: Any, borders: Callable[[Any], int]) -> None:
    # Many more rows than Spark looks at.
    df = facts(spark).where("id >= 0")
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
    "a scalar subquery": lambda d, other: other.where(f"one < (select max(v) from {view(d)})"),
}


def view(df: Any) -> str:
    df.createOrReplaceTempView("beside")
    return "beside"


@pytest.mark.parametrize("beside", BESIDE)
def test_what_stands_beside_a_frame_does_not_move_its_rows(
    spark: Any, borders: Callable[[Any], int], beside: str
) -> None:
    d = asked(facts(spark).repartition(3, "k"))
    other = spark.range(0, 2, 1, 1).selectExpr("id as one")
    first = borders(d)
    assert placed(first)
    assert borders(BESIDE[beside](d, other)) == first


def tuples(spark: Any) -> Any:
    rows = facts(spark).where("id < 30000").collect()
    return spark.createDataFrame([tuple(row) for row in rows], "id long, k long, text string")


def in_groups(df: Any) -> Any:
    """Rows that a query has in groups, and one that reads more where their greatest is."""
    groups = df.groupBy(functions.expr("id % 5003").alias("id")).agg(functions.max("k").alias("k"))
    others = df.groupBy("k").agg(functions.max("text").alias("longest")).hint("merge")
    return groups.join(others, "k", "left").withColumn("v", drawn("id"))


def in_two(spark: Any) -> Any:
    """Settings by which a shuffle has two tasks, however few rows it has."""
    return settings(
        spark,
        spark__sql__shuffle__partitions="2",
        spark__sql__adaptive__coalescePartitions__enabled="false",
    )


def by_id(df: Any) -> dict[int, float]:
    return {row.id: row.v for row in df.collect()}


def test_rows_in_groups_by_an_expression_move(spark: Any, session: Any) -> None:
    # Of an expression that rows are grouped by no plan has a column.
    df = in_groups(tuples(spark))
    with in_two(spark), session.epoch("groups"):
        first = by_id(df.select("id", "v"))
        assert by_id(df) == first
    assert len(first) == 5003


def test_a_job_over_the_rdd_of_a_frame_does_not_hide_that_its_rows_move(
    spark: Any, session: Any
) -> None:
    df = in_groups(facts(spark))
    with in_two(spark), session.epoch("rdd"):
        first = by_id(df.select("id", "v"))
        assert dict(df.select("id", "v").rdd.map(tuple).collect()) == first
        assert by_id(df) == first
    assert len(first) == 5003


def test_rows_of_a_batch_function_move(spark: Any, session: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "facts")
    facts(spark).write.parquet(folder)
    found = []

    def run(batch: Any, _number: int) -> None:
        df = in_groups(batch)
        found.extend((by_id(df.select("id", "v")), by_id(df)))

    stream = spark.readStream.schema("id long, k long, text string").parquet(folder)
    with in_two(spark):
        writer = stream.writeStream.foreachBatch(run).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
    first, second = found
    assert second == first
    assert len(first) == 5003


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
