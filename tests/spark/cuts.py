"""Frames whose rows Spark may cut in several ways into as many tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from epochs import drawn
from pyspark import cloudpickle
from pyspark.sql import functions

# So many that adaptive execution cuts them into several tasks.
ROWS = 60_000
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def facts(spark: Any, rows: int = ROWS) -> Any:
    columns = ("id", "id % 1000 as k", "sha2(cast(id as string), 256) as text")
    return spark.range(0, rows, 1, 2).selectExpr(*columns)


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


def unseen(spark: Any, at: int, rows: int) -> Any:
    """Rows in two tasks, of which nothing tells the border: the tasks look it up themselves."""
    context = spark.sparkContext
    context.environment["CUT_AT"] = str(at)

    def part(number: int, _rows: Any) -> Any:
        border = int(os.environ["CUT_AT"])
        return ((n,) for n in (range(border, rows) if number else range(border)))

    cut = context.parallelize([0, 1], 2).mapPartitionsWithIndex(part)
    return spark.createDataFrame(cut, "id long")


def in_two(spark: Any) -> Any:
    """Settings by which a shuffle has two tasks, however few rows it has."""
    return settings(
        spark,
        spark__sql__shuffle__partitions="2",
        spark__sql__adaptive__coalescePartitions__enabled="false",
    )


def by_id(df: Any) -> dict[int, float]:
    return {row.id: row.v for row in df.collect()}


def in_groups(df: Any) -> Any:
    """Rows that a query has in groups, and one that reads more where their greatest is."""
    groups = df.groupBy(functions.expr("id % 5003").alias("id")).agg(functions.max("k").alias("k"))
    others = df.groupBy("k").agg(functions.max("text").alias("longest")).hint("merge")
    return groups.join(others, "k", "left").withColumn("v", drawn("id"))


def of_one_name(spark: Any) -> Any:
    """Rows that are where their order is, or where their customer is, by what is read."""
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
    return df.withColumn("v", drawn("id"))
