"""Frames that one query reads alone and another as a side of a union."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from cuts import settings
from pyspark import cloudpickle
from pyspark.sql import functions
from pyspark.sql.types import DoubleType

from clonos import causal

pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROWS = 400


@causal("double")
def scored(_tag: str) -> float:
    return random.random()


def new(spark: Any) -> Any:
    """Rows of which many ask for the same."""
    frame = spark.range(0, ROWS, 1, 2).selectExpr("id", "concat('t', id % 3) as tag")
    return frame.withColumn("v", scored("tag"))


def old(spark: Any, tasks: int = 3) -> Any:
    frame = spark.range(tasks * ROWS, (tasks + 1) * ROWS, 1, tasks)
    return frame.selectExpr("id", "'old' as tag", "cast(0 as double) as v")


def shuffled(frame: Any) -> Any:
    return frame.groupBy("id", "tag").agg(functions.max("v").alias("v"))


# Frames in which the new rows stand in one side.
UNIONS: dict[str, Callable[[Any, Any], Any]] = {
    "the last": lambda spark, rows: old(spark).union(rows),
    "the first": lambda spark, rows: rows.union(old(spark)),
    "one of three": lambda spark, rows: old(spark, 1).union(rows).union(old(spark, 2)),
    "of a union": lambda spark, rows: old(spark, 1).union(
        old(spark, 2).union(rows.where("tag <> 't'")).where("v < 2")
    ),
    "beside groups": lambda spark, rows: shuffled(old(spark)).union(rows),
    "below groups": lambda spark, rows: shuffled(old(spark).union(rows)),
    "beside what has none": lambda spark, rows: old(spark).where("1 = 0").union(rows),
    "without the rest": lambda spark, rows: (
        old(spark).join(rows.select("id"), "id", "left_anti").select("id", "tag", "v").union(rows)
    ),
}


def by_id(frame: Any) -> dict[int, float]:
    rows = frame.collect()
    found = {row.id: row.v for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("kind", UNIONS)
def test_rows_get_their_answers_alone_and_in_a_union(spark: Any, session: Any, kind: str) -> None:
    rows = new(spark)
    union = UNIONS[kind](spark, rows)
    for first, then in [(rows, union), (union, rows), (union.where("v < 0.5"), rows)]:
        with session.epoch(kind):
            one, other = by_id(first), by_id(then.select("id", "v"))
            shared = one.keys() & other.keys()
            assert len(shared) > ROWS // 3
            assert {i: one[i] for i in shared} == {i: other[i] for i in shared}
            assert rows.count() == ROWS


def test_rows_get_their_answers_in_a_union_that_is_kept_or_read_one_by_one(
    spark: Any, session: Any
) -> None:
    rows = new(spark)
    union = old(spark).union(rows)
    kept = old(spark, 1).union(union.select("id", "tag", "v")).cache()
    with session.epoch("kept"):
        alone = by_id(rows)
        assert {row.id: row.v for row in union.toLocalIterator() if row.tag != "old"} == alone
        assert {row.id: row.v for row in kept.where("tag <> 'old'").collect()} == alone
    kept.unpersist()


@causal
@functions.pandas_udf(DoubleType())
def drawn_of(_numbers: pd.Series) -> float:
    return random.random()


def test_rows_get_their_answers_in_a_job_over_the_rdd_of_a_union(spark: Any, session: Any) -> None:
    for name, first in {"the rows first": True, "the job first": False}.items():
        union = old(spark).union(new(spark))
        with session.epoch(name):
            rows = [by_id(union)] if first else []
            rows.append({row.id: row.v for row in union.rdd.collect()})
            rows.append(by_id(union.rdd.toDF().select("v", "id")))
            assert all(found == rows[0] for found in rows)


def test_rows_that_changed_places_with_those_of_another_side_are_found(
    spark: Any, session: Any
) -> None:
    """Nothing in the plan tells that their tasks have other rows."""
    v = scored("id")
    one, other = (
        spark.range(start, start + ROWS, 1, 2).withColumn("v", v) for start in (0, 9 * ROWS)
    )
    own = one.select("id", functions.lit("a").alias("tag"), "v")
    for name, frames in {
        "one column": (one.union(other), other.union(one)),
        "with fewer tasks": (old(spark, 2).union(own), own.union(old(spark, 2))),
    }.items():
        with session.epoch(name):
            if name == "one column":
                first, again = map(by_id, frames)
            else:
                first, again = (by_id(frame.coalesce(3)) for frame in frames)
            assert first == again


def test_groups_get_their_answers_on_both_sides_of_a_union(spark: Any, session: Any) -> None:
    rows = spark.range(0, ROWS, 1, 2).selectExpr("id", "id % 40 as k")
    # Sides that are cut alike are computed by the same tasks.
    groups = rows.groupBy("k").agg(drawn_of("id").alias("v"))
    answers = (
        rows.groupBy("k").agg(functions.max("id").alias("most")).withColumn("v", scored("most"))
    )
    for name, frame in {"groups": groups, "rows": answers}.items():
        with session.epoch(name):
            first = {row.k: row.v for row in frame.collect()}
            halves = frame.where("v > 0.5").union(frame.where("v <= 0.5"))
            for union in (halves, frame.union(frame)):
                found = union.collect()
                assert len(found) in {40, 80}
                assert {row.k: row.v for row in found} == first
                assert all(first[row.k] == row.v for row in found)
            one_side = frame.withColumn("v", functions.lit(0.0)).union(frame)
            assert {row.k: row.v for row in one_side.collect() if row.v} == first


def test_two_functions_stand_in_a_side_each(spark: Any, session: Any) -> None:
    rows = new(spark)
    others = old(spark).withColumn("v", scored("tag"))
    with settings(spark, spark__sql__adaptive__enabled="false"), session.epoch("two"):
        alone = by_id(rows) | by_id(others)
        assert by_id(others.union(rows).select("v", "id")) == alone
        assert by_id(rows.union(others)) == alone
