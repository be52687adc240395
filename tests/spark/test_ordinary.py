"""Ordinary queries: with ``@causal`` they give what plain PySpark does, also when run again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from ordinary import ROWS, Mark, check, people, per_row, per_value, scorer, values, world
from pyspark import cloudpickle
from pyspark.sql import Window
from pyspark.sql import functions as sf

pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])
PROGRAMS: list[tuple[Any, Mark]] = []


def program(*marks: Mark) -> Callable[[Any], Any]:
    def add(fn: Any) -> Any:
        PROGRAMS.extend((fn, mark) for mark in marks)
        return fn

    return add


@program(per_row)
def joins(spark: Any, mark: Mark) -> Any:
    score = scorer(mark)
    left = people(spark).withColumn("score", score("id"))
    right = spark.range(0, ROWS, 2).withColumn("other", score(sf.col("id") + 1))
    return {how: values(left.join(right, "id", how)) for how in ("inner", "full", "left_anti")}


@program(per_row, per_value)
def join_on_scores(spark: Any, mark: Mark) -> Any:
    score = scorer(mark)
    left = people(spark).withColumn("score", score("id"))
    right = spark.range(5).select(score("id").alias("score"), sf.col("id").alias("rank"))
    return values(left.join(sf.broadcast(right), "score")), values(
        left.join(right.hint("merge"), "score")
    )


@program(per_row)
def unions(spark: Any, mark: Mark) -> Any:
    score = scorer(mark)
    a = people(spark).select("id", score("id").alias("s"))
    b = people(spark).select(score("team").alias("s"), "id")
    return (
        values(a.unionByName(b)),
        values(a.union(a).distinct()),
        values(a.intersect(b)),
        values(a.exceptAll(b.select("id", "s"))),
    )


@program(per_row)
def self_join(spark: Any, mark: Mark) -> Any:
    scored = people(spark).withColumn("s", scorer(mark)("id"))
    a, b = scored.alias("a"), scored.alias("b")
    return values(a.join(b, (sf.col("a.s") == sf.col("b.s")) & (sf.col("a.id") < sf.col("b.id"))))


def register(spark: Any, mark: Mark) -> None:
    spark.udf.register("score", scorer(mark))
    people(spark).createOrReplaceTempView("people")


@program(per_row)
def sql_subqueries(spark: Any, mark: Mark) -> Any:
    register(spark, mark)
    return [
        values(spark.sql(text))
        for text in (
            """select id from people where score(id) >
                (select avg(s) from (select score(id) s from people))""",
            "select id from people where id in (select score(id) from people)",
            "select id, (select max(q.id) from people q where score(q.id) = p.team) from people p",
            "select * from people p where exists (select 1 from people q where score(q.id) = p.id)",
        )
    ]


@program(per_value)
def where_spark_wants_deterministic_functions(spark: Any, mark: Mark) -> Any:
    score = scorer(mark)
    register(spark, mark)
    df = people(spark)
    a, b = df.alias("a"), df.alias("b")
    return (
        values(df.groupBy("team").agg(sf.sum(score("id")), sf.avg(score("team")))),
        values(a.join(b, score(sf.col("a.id")) == score(sf.col("b.team")), "left")),
        values(
            spark.sql("select id from people where score(id) > (select avg(score(id)) from people)")
        ),
        values(spark.sql("select score(id), count(*) from people group by score(id)")),
    )


@program(per_row)
def sql_without_arguments(spark: Any, mark: Mark) -> Any:
    spark.udf.register("now_it_is", mark("long")(world))
    return values(spark.sql("select id, now_it_is() as n from range(5)")), values(
        spark.sql("select now_it_is()")
    )


@program(per_row)
def sql_ctes(spark: Any, mark: Mark) -> Any:
    register(spark, mark)
    return values(
        spark.sql("""
        with scored as (select *, score(id) as s from people),
             best as (select team, max(s) as s from scored group by team)
        select * from scored join best using (team, s) order by id""")
    )


@program(per_row)
def sql_named_and_default_arguments(spark: Any, mark: Mark) -> Any:
    @mark("string")
    def label(name: Any, suffix: str = "!", times: int = 1) -> str:
        return f"{name}{suffix * times}{world()}"

    spark.udf.register("label", label)
    people(spark).createOrReplaceTempView("people")
    return [
        values(spark.sql(f"select id, {call} as c from people"))
        for call in (
            "label(name)",
            "label(name, '?')",
            "label(name => name)",
            "label(times => 3, name => name)",
            "label(name, times => team)",
        )
    ]


@program(per_row)
def view_over_a_column(spark: Any, mark: Mark) -> Any:
    people(spark).withColumn("s", scorer(mark)("id")).createOrReplaceTempView("scored")
    return values(spark.sql("select s, count(*) c from scored group by s having s > 1")), values(
        spark.table("scored").where("s = 0")
    )


@program(per_row, per_value)
def caching(spark: Any, mark: Mark) -> Any:
    scored = people(spark).withColumn("s", scorer(mark)("id")).cache()
    try:
        return scored.count(), values(scored.groupBy("s").count()), values(scored)
    finally:
        scored.unpersist()


@program(per_row, per_value)
def windows(spark: Any, mark: Mark) -> Any:
    score = scorer(mark)
    window = Window.partitionBy("team").orderBy("s", "id")
    scored = people(spark).withColumn("s", score("id"))
    ranked = scored.select(
        "*",
        sf.row_number().over(window).alias("n"),
        sf.lag("s").over(window),
        sf.sum("s").over(Window.partitionBy("s")),
    )
    return (
        values(ranked),
        values(ranked.where("n = 1")),
        values(
            people(spark).withColumn(
                "n", score(sf.rank().over(Window.partitionBy("team").orderBy("id")))
            )
        ),
    )


@program(per_row)
def grouping(spark: Any, mark: Mark) -> Any:
    score = scorer(mark)
    df = people(spark)
    return (
        values(df.groupBy(score("id").alias("s")).agg(sf.count("*"), sf.max("id"))),
        values(df.withColumn("s", score("id")).groupBy("s").agg(sf.collect_set("team"))),
        values(df.groupBy("team").agg(score(sf.max("id")))),
        values(df.withColumn("s", score("id")).groupBy("team").pivot("s", [0, 1, 2]).count()),
        values(df.withColumn("s", score("id")).rollup("team", "s").count()),
    )


@program(per_row)
def exploding(spark: Any, mark: Mark) -> Any:
    @mark("array<string>")
    def letters(name: Any) -> Any:
        return None if name is None else [*name, str(world()), None]

    df = people(spark).withColumn("letters", letters("name"))
    return (
        values(df.select("id", sf.explode("letters"))),
        values(df.select("id", sf.posexplode_outer("letters"))),
        values(df.select(sf.explode(letters("name")))),
        values(df.select(sf.transform("letters", sf.upper), sf.size("letters"))),
    )


@program(per_row)
def transform_chain(spark: Any, mark: Mark) -> Any:
    score = scorer(mark)

    def scored(df: Any, by: str) -> Any:
        return df.withColumn(f"s_{by}", score(by))

    def best(df: Any) -> Any:
        return df.where((sf.col("s_id") > 0) & sf.col("s_team").isNotNull()).drop("s_team")

    return values(
        people(spark).transform(scored, "id").transform(scored, by="team").transform(best)
    )


@program(per_row)
def ordering(spark: Any, mark: Mark) -> Any:
    score = scorer(mark)
    df = people(spark).withColumn("s", score("id"))
    return (
        df.orderBy("s", "id").collect(),
        df.orderBy(sf.desc("s"), "id").limit(5).collect(),
        people(spark).orderBy(score("id"), "id").collect(),
    )


@program(per_row, per_value)
def limits(spark: Any, mark: Mark) -> Any:
    df = people(spark).coalesce(1).withColumn("s", scorer(mark)("id"))
    df.show(3)
    return (
        df.take(4),
        df.limit(6).collect(),
        df.head(),
        df.tail(2),
        df.limit(3).count(),
        df.isEmpty(),
        values(df),
        df.offset(25).collect(),
    )


@program(per_row)
def moving(spark: Any, mark: Mark) -> Any:
    df = people(spark).withColumn("s", scorer(mark)("id"))
    return (
        values(df.coalesce(1)),
        values(df.repartition(4)),
        values(df.repartition(3, "s")),
        values(df.repartitionByRange(2, "s")),
        values(df.sortWithinPartitions("s")),
        sorted(map(repr, df.toLocalIterator())),
        df.toPandas().sort_values("id").to_csv(),
        sorted(df.rdd.map(lambda row: row.s).collect()),
        df.toArrow().sort_by("id").to_pylist(),
        sorted(df.sample(fraction=0.5, seed=3).collect()),
        [values(part) for part in df.randomSplit([0.5, 0.5], seed=1)],
    )


@program(per_row)
def duplicates(spark: Any, mark: Mark) -> Any:
    df = people(spark).withColumn("s", scorer(mark)("id"))
    return (
        values(df.dropDuplicates(["s"]).select("s")),
        df.select("s").distinct().count(),
        values(df.groupBy("s").agg(sf.countDistinct("team"))),
    )


@program(per_row, per_value)
def conditions(spark: Any, mark: Mark) -> Any:
    score = scorer(mark)
    df = people(spark)
    return (
        values(df.select("id", sf.when(sf.col("id") > 5, score("id")).otherwise(-1))),
        values(df.where((score("id") > 1) & (sf.col("team") == 1))),
        values(df.withColumns({"a": score("id"), "b": score("team")}).na.fill({"a": 0})),
        values(
            df.select(
                sf.coalesce(score("team"), sf.lit(0)),
                score("id").cast("string"),
                score("id") + score("team"),
            )
        ),
        values(df.filter(score("id").isin(1, 2)).select(score("id").between(0, 3))),
        df.selectExpr("id").withColumn("s", score("id")).describe("s").collect(),
        df.withColumn("s", score("id")).stat.approxQuantile("s", [0.5], 0.0),
    )


@program(per_row)
def files(spark: Any, mark: Mark) -> Any:
    import tempfile

    df = people(spark).withColumn("s", scorer(mark)("id"))
    with tempfile.TemporaryDirectory() as folder:
        df.write.partitionBy("s").mode("overwrite").parquet(folder + "/p")
        df.write.json(folder + "/j")
        return values(spark.read.parquet(folder + "/p")), values(spark.read.json(folder + "/j"))


@program(per_row)
def checkpoints_and_rdds(spark: Any, mark: Mark) -> Any:
    df = people(spark).withColumn("s", scorer(mark)("id"))
    kept = df.localCheckpoint()
    return values(kept), values(kept.where("s > 1")), df.rdd.map(lambda r: (r.s, 1)).countByKey()


@pytest.mark.parametrize(
    ("fn", "mark"), PROGRAMS, ids=[f"{fn.__name__}-{mark.__name__}" for fn, mark in PROGRAMS]
)
def test_a_query(session: Any, fn: Any, mark: Mark) -> None:
    check(session, fn, mark)
