"""Queries of one epoch whose rows Spark cuts into as many tasks by other borders, as it runs them.

No plan of theirs differs below the function: how frames are joined, and which partitions of a
shuffle are read together, Spark decides by what each query reads.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cuts import ROWS, by_id, facts, in_groups, in_two, of_one_name, settings
from epochs import drawn
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions

import clonos
from clonos import causal, errors

pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def answers(df: Any) -> tuple[int, dict[int, float]]:
    """Of all rows, and how many tasks there were."""
    rows = df.withColumn("task", functions.spark_partition_id()).collect()
    assert len(rows) == ROWS
    return len({row.task for row in rows}), {row.id: row.v for row in rows}


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
    df = of_one_name(spark)
    with in_two(spark), session.epoch("columns of one name"):
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


def tuples(spark: Any) -> Any:
    rows = facts(spark).where("id < 30000").collect()
    return spark.createDataFrame([tuple(row) for row in rows], "id long, k long, text string")


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


def test_a_job_over_an_rdd_that_comes_first_is_compared(spark: Any, session: Any) -> None:
    df = in_groups(facts(spark))
    with in_two(spark), session.epoch("rdd first"):
        first = dict(df.select("id", "v").rdd.map(tuple).collect())
        assert by_id(df) == first
    assert len(first) == 5003


def test_rows_of_a_function_that_is_sent_as_a_broadcast_move(spark: Any, session: Any) -> None:
    held = random.Random(1).randbytes(3_000_000)

    @causal("double")
    def large(_x: Any) -> float:
        return random.random() + len(held)

    groups = in_groups(facts(spark)).drop("v").withColumn("v", large("id"))
    with in_two(spark), session.epoch("large"):
        first = by_id(groups.select("id", "v"))
        assert by_id(groups) == first
    assert len(first) == 5003


def test_a_query_whose_columns_are_not_known_hides_nothing(spark: Any, session: Any) -> None:
    df = of_one_name(spark)
    with in_two(spark), session.epoch("hidden"):
        narrow = df.select("id", "note", "v")
        by_id(narrow.where("id < 30000"))
        first = {row.id: row.v for row in narrow.rdd.collect()}
        assert by_id(df) == first
    assert len(first) == ROWS


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
