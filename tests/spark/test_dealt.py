"""Queries of one epoch that have their rows in other partitions, as many, by what no plan tells."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from epochs import again, drawn
from pyspark import cloudpickle
from pyspark.errors import PySparkException

from clonos import errors, functions

ROWS = 400
pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def frame(spark: Any, folder: Path) -> Any:
    columns = ("id", "concat('w', id) as w", "id * 2 as x")
    spark.range(0, ROWS, 1, 3).selectExpr(*columns).write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def by_id(df: Any) -> dict[int, Any]:
    rows = {row.id: row.v for row in df.collect()}
    assert len(rows) == ROWS
    return rows


FIRST: dict[str, Callable[[Any], Any]] = {
    "all": lambda df: df.collect(),
    "a few": lambda df: df.take(5),
    "a count": lambda df: df.where("v is not null").count(),
}


@pytest.mark.parametrize("first", FIRST)
def test_columns_that_another_query_reads_do_not_matter_behind_repartition(
    spark: Any, session: Any, tmp_path: Path, first: str
) -> None:
    with session.epoch(f"dealt {first}"):
        df = frame(spark, tmp_path / "in").repartition(4).withColumn("v", drawn("w"))
        seen = {row.id: row.v for row in FIRST[first](df)} if first != "a count" else {}
        narrow = by_id(df.select("id", "v"))
        assert by_id(df) == narrow
        assert {row: narrow[row] for row in seen} == seen
        assert by_id(df.drop("w")) == narrow


def test_both_sides_of_a_join_have_one_answer_behind_repartition(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    with session.epoch("joined"):
        df = frame(spark, tmp_path / "in").repartition(4).withColumn("v", drawn("w"))
        rows = df.join(df.selectExpr("id", "v as again"), "id").collect()
    assert len(rows) == ROWS
    assert all(row.v == row.again for row in rows)


def test_columns_that_a_restarted_program_reads_do_not_matter_behind_repartition(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    df = frame(spark, tmp_path / "in")

    def answers(*columns: str) -> dict[int, Any]:
        return by_id(df.repartition(4).withColumn("v", drawn("w")).select("id", *columns, "v"))

    first, second = again(session, answers, lambda: answers("x"))
    assert first == second


def test_what_is_drawn_behind_repartition_is_refused_where_rows_cannot_be_found(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    # They have no arguments by which to find them.
    df = frame(spark, tmp_path / "in").repartition(4).withColumn("v", functions.uuid())
    with session.epoch("uuids"):
        by_id(df)
        with pytest.raises(PySparkException) as refused:
            by_id(df.select("id", "v"))
    assert isinstance(errors.find(refused.value), errors.ReplayDivergence)


@pytest.mark.parametrize("read", ["id as k", "id * 2 as k"])
@pytest.mark.parametrize("cut", ["sort", "range"])
def test_borders_that_are_drawn_from_a_sample_do_not_matter(
    spark: Any, session: Any, cut: str, read: str
) -> None:
    # More rows than Spark looks at to choose borders: another query looks at others.
    numbers = spark.range(0, 150_000, 1, 2).selectExpr("id", "hash(id) as h", read)
    with session.epoch(f"sampled {cut} {read}"):
        df = numbers.orderBy("h") if cut == "sort" else numbers.repartitionByRange(5, "h")
        df = df.withColumn("v", drawn("k"))
        first = dict(map(tuple, df.select("id", "v").collect()))
        second, third = ({row.id: row.v for row in df.collect()} for _ in range(2))
    assert len(first) == 150_000
    assert sum(first[row] != second[row] for row in first) == 0
    assert second == third


def test_equal_rows_that_move_over_such_borders_are_told_apart_by_what_else_is_read(
    spark: Any, session: Any
) -> None:
    numbers = spark.range(0, 150_000, 1, 2).selectExpr("id", "hash(id) as h", "id % 75000 as k")
    with session.epoch("sampled equal rows"):
        df = numbers.repartitionByRange(30, "h").withColumn("v", drawn("k"))
        first, second = ({row.id: row.v for row in df.collect()} for _ in range(2))
    assert len(first) == 150_000
    assert sum(first[row] != second[row] for row in first) == 0


ORDERED: dict[str, Callable[[Any], Any]] = {
    "sort": lambda df: df.orderBy("id"),
    "shuffle": lambda df: df.repartition(3, "id").sortWithinPartitions("id"),
    "join": lambda df: df.join(df.selectExpr("id", "x as y"), "id").sortWithinPartitions("id"),
}


@pytest.mark.parametrize("order", ORDERED)
def test_actions_that_read_other_columns_of_equal_rows_in_one_order_agree(
    spark: Any, session: Any, order: str
) -> None:
    numbers = spark.range(0, ROWS, 1, 3).selectExpr(
        "id", "concat('w', id % 20) as w", "id * 2 as x"
    )
    with session.epoch(f"in order of a {order}"):
        df = ORDERED[order](numbers.localCheckpoint()).withColumn("v", drawn("w"))
        few = {row.id: row.v for row in df.take(5)}
        narrow, whole = by_id(df.select("id", "v")), by_id(df)
    assert whole == narrow
    assert {row: narrow[row] for row in few} == few
