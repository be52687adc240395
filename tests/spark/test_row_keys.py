"""Rows that are told apart by what Spark has grouped by, whichever columns a query reads."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from epochs import drawn
from pyspark import cloudpickle
from pyspark.sql import Window, functions

import clonos
from clonos import causal

ROWS = 4_000
NAMES = ROWS // 2
pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@causal("double")
def drawn_from_nothing() -> float:
    return random.random()


def sales(spark: Any) -> Any:
    """Rows of which two have each name, and many each country."""
    columns = (
        f"concat('name ', id % {NAMES}) as name",
        f"(id % {NAMES}) % 7 as country",
        "sha2(cast(id as string), 256) as note",
    )
    return spark.range(0, ROWS, 1, 2).selectExpr(*columns)


def totals(spark: Any) -> Any:
    note = functions.max("note").alias("note")
    return sales(spark).groupBy("name", "country").agg(note)


def others(spark: Any) -> Any:
    others = sales(spark).groupBy("name").agg(functions.min("note").alias("least"))
    return others.withColumnRenamed("name", "other").hint("merge")


def several(spark: Any) -> Any:
    """Groups of which up to three belong to one name."""
    key = f"concat('name ', cast(id % {NAMES - 100} as string)) as of"
    grouped = spark.range(0, NAMES, 1, 2).selectExpr("cast(id as string) as other", key)
    return grouped.groupBy("other").agg(functions.max("of").alias("of")).hint("merge")


def sides(spark: Any) -> tuple[Any, Any]:
    """Groups of which some have no key, and others of which others have none."""
    none = functions.when(functions.col("country") != 3, functions.col("name"))
    left = totals(spark).withColumn("name", none).groupBy("name").agg(functions.max("note"))
    other = functions.when(functions.col("name") != "name 7", functions.col("name"))
    right = totals(spark).where("country < 4").withColumn("other", other).groupBy("other")
    return left, right.agg(functions.max("country").alias("of")).hint("shuffle_hash")


def in_some(spark: Any) -> Any:
    totals(spark).createOrReplaceTempView("all_totals")
    sales(spark).where("country < 3").createOrReplaceTempView("some_sales")
    return spark.sql(
        "select * from all_totals where name in (select name from some_sales) or length(note) = 64"
    )


# What a query that reads all gives in another order than one that reads few, as its rows are wider.
FRAMES: dict[str, Callable[[Any], Any]] = {
    "groups": totals,
    "groups in order": lambda spark: totals(spark).orderBy("country"),
    "dealt groups": lambda spark: (
        totals(spark).repartition(3, "country").sortWithinPartitions("country")
    ),
    "first of each name": lambda spark: sales(spark).dropDuplicates(["name"]),
    "groups with others beside them": lambda spark: totals(spark).join(
        others(spark), functions.expr("name = other"), "left"
    ),
    "groups beside others": lambda spark: others(spark).join(
        totals(spark), functions.expr("name = other"), "right"
    ),
    "pairs of groups": lambda spark: (
        totals(spark)
        .where("country = 1")
        .join(others(spark), functions.expr("hash(other) % 50 = country"))
    ),
    "some groups": lambda spark: totals(spark).join(
        sales(spark).where("country < 5").hint("merge"), "name", "left_semi"
    ),
    "ranks": lambda spark: totals(spark).withColumn(
        "rank", functions.row_number().over(Window.partitionBy("country").orderBy("note"))
    ),
    "computed": lambda spark: (
        totals(spark)
        .withColumnRenamed("name", "called")
        .withColumn("length", functions.length("called"))
        .where("length > 0")
        .withColumnRenamed("called", "name")
    ),
    "another function below": lambda spark: (
        totals(spark).withColumn("w", drawn("country")).where("w >= 0").orderBy("country")
    ),
    "several of each": lambda spark: totals(spark).join(
        several(spark), functions.expr("name = of"), "left"
    ),
    "several of each, in order": lambda spark: (
        totals(spark).join(several(spark), functions.expr("name = of"), "left").orderBy("country")
    ),
    "either side": lambda spark: (
        sides(spark)[0]
        .join(sides(spark)[1], functions.expr("name = other"), "full")
        .withColumn("country", functions.expr("coalesce(of, 7)"))
        .orderBy("country")
    ),
    "equal to a cast": lambda spark: (
        totals(spark)
        .groupBy(functions.expr("cast(substr(name, 6) as int)").alias("name"))
        .agg(functions.max("country").alias("country"), functions.max("note").alias("note"))
        .join(
            spark.range(0, NAMES, 1, 2).groupBy("id").count().hint("merge"),
            functions.expr("name = id"),
            "left",
        )
        .orderBy("country")
    ),
    "groups of groups": lambda spark: (
        totals(spark).dropDuplicates(["name", "country", "note"]).orderBy("country")
    ),
    "groups of as many groups": lambda spark: (
        totals(spark)
        .groupBy(functions.col("name").alias("called"), "country")
        .agg(functions.max("note").alias("note"))
        .withColumnRenamed("called", "name")
        .orderBy("country")
    ),
    "beside a total": lambda spark: totals(spark).crossJoin(
        totals(spark).agg(functions.max("note").alias("most"))
    ),
    "equal to a total": lambda spark: (
        totals(spark)
        .join(
            spark.range(3).agg(functions.max("id").alias("m")),
            functions.expr("country = m"),
            "left",
        )
        .orderBy("country")
    ),
    "in some groups, or long": lambda spark: in_some(spark).orderBy("country"),
    "a struct": lambda spark: (
        sales(spark)
        .groupBy(functions.struct("name", "country").alias("s"))
        .agg(functions.max("note").alias("note"))
        .select("s.name", "s.country", "note")
        .orderBy("country")
    ),
    "hours": lambda spark: (
        sales(spark)
        .withColumn(
            "hour", functions.expr("timestamp_seconds(3600 * cast(substr(name, 6) as int))")
        )
        .groupBy(functions.window("hour", "1 hour").alias("w"))
        .agg(functions.max("country").alias("country"), functions.max("note").alias("note"))
        .withColumn("name", functions.expr("cast(w.start as string)"))
        .orderBy("country")
    ),
    "texts of any case": lambda spark: (
        sales(spark)
        .withColumn("name", functions.expr("if(note < '8', upper(name), name) collate utf8_lcase"))
        .groupBy("name")
        .agg(functions.max("country").alias("country"), functions.max("note").alias("note"))
        .orderBy("country")
    ),
    "exploded": lambda spark: totals(spark).withColumn(
        "side", functions.expr("explode(array(1, 2))")
    ),
    "exploded sums": lambda spark: (
        sales(spark)
        .groupBy("name")
        .agg(
            functions.max("note").alias("note"),
            functions.max("country").alias("country"),
            functions.avg(functions.length("note") / 3.0).alias("mean"),
        )
        .selectExpr("*", "stack(2, 1, mean, 2, mean) as (side, value)")
        .drop("mean")
    ),
    "turned": lambda spark: (
        totals(spark)
        .withColumn("other_note", functions.reverse("note"))
        .unpivot(["name", "country"], ["note", "other_note"], "side", "value")
        .orderBy("country")
    ),
    "a list": lambda spark: (
        sales(spark)
        .withColumn("l", functions.array("name", functions.col("country").cast("string")))
        .dropDuplicates(["l"])
        .orderBy("country")
    ),
    "expressions": lambda spark: (
        sales(spark)
        .groupBy(functions.upper("name").alias("name"), (functions.col("country") + 0).alias("c"))
        .agg(functions.max("note").alias("note"), functions.first("country").alias("country"))
    ),
}

KEYS = ("name", "other", "side")


def by_key(df: Any) -> dict[Any, Any]:
    key = [one for one in KEYS if one in df.columns]
    answers = [one for one in ("v", "w") if one in df.columns]
    found = {tuple(row[one] for one in key): [row[one] for one in answers] for row in df.collect()}
    assert found
    return found


@pytest.mark.parametrize("frame", FRAMES)
def test_few_columns_of_a_frame_have_the_answers_that_all_had(
    spark: Any, session: Any, frame: str
) -> None:
    df = (
        FRAMES[frame](spark).withColumn("v", drawn("country")).withColumn("w", drawn_from_nothing())
    )
    with session.epoch(frame):
        first = by_key(df)
        few = df.select(*(one for one in KEYS if one in df.columns), "v", "w")
        assert by_key(few) == first
        assert by_key(few.where("v is not null")) == first
        assert by_key(few.drop("v")) == {key: [w] for key, (_, w) in first.items()}


def test_uuids_of_groups_stay(spark: Any, session: Any) -> None:
    df = totals(spark).orderBy("country").withColumn("v", clonos.functions.uuid())
    with session.epoch("uuid"):
        assert by_key(df.select("name", "v")) == by_key(df)


def hashed(df: Any) -> str:
    """What the marks of a query are made of."""
    plan = df._jdf.queryExecution().optimizedPlan().toString()
    return str(plan.partition("xxhash64(")[2].partition(", 42)")[0])


def test_marks_are_of_the_keys_alone(spark: Any, session: Any) -> None:
    df = totals(spark).withColumn("v", drawn("country"))
    for query in (df, df.select("v"), df.groupBy("country").agg(functions.max("v"))):
        marks = hashed(query)
        assert "name#" in marks
        assert "country#" in marks
        assert "note#" not in marks
    assert df.select("v").columns == ["v"]
    # One row of the groups stands beside several others.
    several = totals(spark).join(sales(spark).drop("note").hint("merge"), "country")
    assert "note#" in hashed(several.withColumn("v", drawn("country")))


def test_rows_that_are_made_of_drawn_values_have_no_keys(spark: Any, session: Any) -> None:
    groups = totals(spark).withColumn("drawn", functions.rand())
    made = groups.selectExpr("*", "explode(array(drawn, 2 * drawn)) as value")
    assert "note#" in hashed(made.withColumn("v", drawn("country")))
    named = groups.selectExpr("*", "stack(2, 1, drawn, 2, drawn) as (side, value)")
    marks = hashed(named.withColumn("v", drawn("country")))
    assert "side#" in marks
    assert "value#" not in marks
    assert "note#" not in marks


def test_keys_that_are_drawn_are_none(spark: Any, session: Any) -> None:
    groups = sales(spark).withColumn("k", functions.rand()).groupBy("k").agg(functions.max("name"))
    assert "k#" not in hashed(groups.withColumn("v", drawn_from_nothing()))


def test_a_stream_whose_batch_function_makes_the_first_column_has_them(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = str(tmp_path / "sales")
    sales(spark).write.parquet(folder)
    found = []

    def run(batch: Any, _number: int) -> None:
        groups = batch.groupBy("name").agg(functions.max("note"), functions.max("country"))
        df = groups.withColumn("v", drawn_from_nothing())
        found.extend([by_key(df), by_key(df.select("name", "v"))])

    stream = spark.readStream.schema("name string, country long, note string").parquet(folder)
    writer = stream.writeStream.foreachBatch(run).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert len(found) == 2
    assert found[0] == found[1]
