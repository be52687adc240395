"""Rows without keys that a second query reads with other columns: where order tells them apart."""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

import pytest
from epochs import drawn
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions

import clonos
from clonos import causal, errors

ROWS = 2_000
pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@causal("double")
def drawn_from_nothing() -> float:
    return random.random()


def orders(spark: Any) -> Any:
    columns = (
        "id",
        "hash(id) % 5 as country",
        "cast(hash(id, 7) % 300 as string) as customer",
        "sha2(cast(id as string), 256) as note",
    )
    return spark.range(0, ROWS, 1, 2).selectExpr(*columns)


def customers(spark: Any) -> Any:
    return spark.range(-300, 300, 1, 1).selectExpr(
        "cast(id as string) as customer", "id % 3 as level", "repeat('x', 200) as text"
    )


def joined(spark: Any, hint: str) -> Any:
    return orders(spark).join(customers(spark).hint(hint), "customer")


def by_id(df: Any) -> dict[int, Any]:
    found = {row.id: row.v for row in df.collect()}
    assert len(found) == ROWS
    return found


def assert_refused(session: Any, name: str, df: Any, few: Any) -> None:
    with session.epoch(name):
        by_id(df)
        with pytest.raises(PySparkException) as refused:
            few.collect()
    error = errors.find(refused.value)
    assert isinstance(error, errors.ReplayDivergence)
    assert "row_key=" in str(error)


def test_rows_that_come_sorted_by_their_arguments_are_refused(spark: Any, session: Any) -> None:
    merged = joined(spark, "merge")
    for name, df in {
        "merged": merged.withColumn("v", drawn("customer")),
        "sorted": merged.orderBy("country").withColumn("v", drawn("country")),
        "nothing given": merged.withColumn("v", drawn_from_nothing()),
        "uuid": merged.withColumn("v", clonos.functions.uuid()),
    }.items():
        assert_refused(session, name, df, df.select("id", "v"))


def test_a_key_tells_them_apart(spark: Any, session: Any) -> None:
    merged = joined(spark, "merge").orderBy("country")
    for name, v in {
        "alike": drawn("country", row_key="id"),
        "uuid": clonos.functions.uuid(row_key="id"),
    }.items():
        df = merged.withColumn("v", v)
        with session.epoch(name):
            assert by_id(df.select("id", "v")) == by_id(df)


def test_arguments_that_come_mixed_tell_rows(spark: Any, session: Any) -> None:
    df = orders(spark).repartition(3, "customer").withColumn("v", drawn("country"))
    with session.epoch("mixed"):
        assert by_id(df.select("id", "v")) == by_id(df)


def test_rows_that_come_from_their_source_are_in_its_order(spark: Any, session: Any) -> None:
    kept = joined(spark, "merge").cache()
    for name, frame in {
        "broadcast": joined(spark, "broadcast"),
        "kept": kept,
        "kept and joined": kept.join(functions.broadcast(spark.range(5)), functions.expr("true")),
    }.items():
        df = frame.withColumn("v", clonos.functions.uuid())
        with session.epoch(name):
            first = Counter(row[:2] for row in df.select("note", "v", "text").collect())
            assert Counter(df.select("note", "v").collect()) == first
    kept.unpersist()


def test_a_query_that_reads_nothing_but_the_arguments_gets_their_answers(
    spark: Any, session: Any
) -> None:
    for name, df in {
        "alike": joined(spark, "merge").withColumn("v", drawn("customer")),
        "nothing given": joined(spark, "merge").withColumn("v", drawn_from_nothing()),
    }.items():
        read = ["v"] if name == "nothing given" else ["customer", "v"]
        with session.epoch(name):
            first = Counter(tuple(row[one] for one in read) for row in df.collect())
            assert Counter(map(tuple, df.select(*read).collect())) == first
            assert df.agg(functions.sum("v")).first()[0] > 0


def test_a_filter_reads_what_tells_rows_apart(spark: Any, session: Any) -> None:
    df = joined(spark, "merge").withColumn("v", drawn("customer"))
    # It stays above the function, so that more is read of the rows than the arguments.
    few = df.where(f"id >= {ROWS // 2}").select("customer", "v")
    assert_refused(session, "left out", df, few)
