"""Which rows a query has a function see, as the driver's agent is told."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import seen_borders
from cuts import facts
from pyspark import cloudpickle
from pyspark.sql import Window, functions
from pyspark.sql.types import DoubleType
from seen_borders import asked, choice, plain

from clonos import causal

ROWS = 3_000
pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])
told, session, borders = seen_borders.told, seen_borders.session, seen_borders.borders


def sql(df: Any, query: str) -> Any:
    df.createOrReplaceTempView("facts_of_a_query")
    return df.sparkSession.sql(query.replace("facts", "facts_of_a_query"))


# Frames of which the function sees other rows each.
CHOSEN: dict[str, Callable[[Any], Any]] = {
    "all": lambda df: df,
    "a filter": lambda df: df.where("id > 1000"),
    "another filter": lambda df: df.where("id > 1001"),
    "a filter of another column": lambda df: df.where("k > 1000"),
    "two filters": lambda df: df.where("id > 1000").where("k > 3"),
    "a list": lambda df: df.where(functions.col("k").isin(*range(20))),
    "a plain function": lambda df: df.where(plain("k") > 3),
    "a limit": lambda df: df.limit(100),
    "a longer limit": lambda df: df.limit(101),
    "first in order": lambda df: df.orderBy("k").limit(100),
    "groups": lambda df: df.groupBy("k").agg(functions.max("id").alias("id")),
    "groups by two": lambda df: df.groupBy("k", "id").count(),
    "distinct": lambda df: df.select("id", "k").distinct(),
    "distinct of another": lambda df: df.selectExpr("id", "id % 7 as m").distinct(),
    "a join": lambda df: df.join(df.selectExpr("id as i", "k as j"), functions.expr("id = j")),
    "a left join": lambda df: df.join(
        df.selectExpr("id as i", "k as j"), functions.expr("id = j"), "left"
    ),
    "a join by another": lambda df: df.join(
        df.selectExpr("id as i", "k as j"), functions.expr("id = i")
    ),
    "a sample": lambda df: df.sample(0.5, 7),
    "another sample": lambda df: df.sample(0.5, 8),
    "a table twice": lambda df: df.union(df),
    "an array": lambda df: df.selectExpr("*", "explode(array(k, k + 1)) as e"),
    "a shorter array": lambda df: df.selectExpr("*", "explode(array(k)) as e"),
    "in a query": lambda df: sql(
        df, "select * from facts where id in (select k from facts where k > 9)"
    ),
    "in another": lambda df: sql(
        df, "select * from facts where id in (select k from facts where k > 8)"
    ),
    "a common table": lambda df: sql(
        df, "with c as (select * from facts where k > 1) select * from c where id > 5"
    ),
    "another common table": lambda df: sql(
        df, "with c as (select * from facts where k > 2) select * from c where id > 5"
    ),
    "two of a common table": lambda df: sql(
        df,
        "with c as (select * from facts where k > 1) select c.* from c join c d on c.id = d.k",
    ),
}


def only(rest: int) -> Any:
    return functions.udf(lambda k: k % 2 == rest, "boolean")("k")


def of_two(df: Any) -> Any:
    other = functions.broadcast(df.selectExpr("id as i", "k + 1 as k").alias("b"))
    return df.alias("a").join(other, functions.expr("id = i"))


def with_variable(df: Any, number: int) -> Any:
    spark = df.sparkSession
    spark.sql("declare or replace variable rest bigint default 0")
    spark.sql(f"set var rest = {number}")
    return df.where("id % 2 = rest")


def by_frame(df: Any, other: Any) -> Any:
    other.createOrReplaceTempView("other_frame")
    return sql(df, "select * from facts where id in (select id from other_frame)")


def local(df: Any, numbers: list[int]) -> Any:
    """A frame of rows that the driver holds."""
    return df.sparkSession.createDataFrame(pa.table({"id": numbers}))


def of_class(number: int) -> Any:
    class Limits:
        low = number

    return functions.udf(lambda k: k >= Limits.low, "boolean")("k")


def of_broadcast(df: Any, number: int) -> Any:
    names = df.sparkSession.sparkContext.broadcast({f"name {number}", "another", "one more"})
    return functions.udf(lambda text: text in names.value, "boolean")("text")


def of_large(number: int) -> Any:
    table = bytes([number]) * 2_000_000
    return functions.udf(lambda k: table[k] > 0, "boolean")("k")


def in_some_order(*values: int) -> Any:
    return functions.col("k").isin(*random.sample(values, len(values)))


# Of each two what a filter looks at is called the same, and is not.
ALIKE: dict[str, Callable[[Any, int], Any]] = {
    "a function's closure": lambda df, n: df.where(only(n)),
    "a function's class": lambda df, n: df.where(of_class(n)),
    "a function's broadcast": lambda df, n: df.where(of_broadcast(df, n)),
    "a function's large table": lambda df, n: df.where(of_large(n)),
    "values in any order": lambda df, n: df.where(in_some_order(n, *range(4, 9))),
    "patterns": lambda df, n: df.where(f"text like any ('%{n}', '%{n}2')"),
    "a column of either side": lambda df, n: of_two(df).where(f"{'ab'[n]}.k > 5"),
    "a column that is computed": lambda df, n: df.withColumn(
        "flag", functions.expr(f"id % 2 = {n}")
    ).where("flag"),
    "a column that a query computes": lambda df, n: sql(
        df, f"select *, id in (select id * 2 + {n} from range(300)) as flag from facts"
    ).where("flag"),
    "a query's table": lambda df, n: sql(
        df, f"select * from facts where id in (select * from values ({n}L), (7L))"
    ),
    "a query's column": lambda df, n: sql(
        df, f"select * from facts where id in (select id * 2 + {n} from range(300))"
    ),
    "a query's sum": lambda df, n: sql(
        df, f"select * from facts where k = (select {('min', 'max')[n]}(k) from facts)"
    ),
    "one of two columns that queries compute": lambda df, n: sql(
        df, "select *, (select max(k) from facts) a, (select min(k) from facts) b from facts"
    ).where(f"k = {'ab'[n]}"),
    "a query's list": lambda df, n: by_frame(
        df, df.sparkSession.createDataFrame([(n,), (7,)], "id long")
    ),
    "a query's rows": lambda df, n: by_frame(df, local(df, [*range(2_000), 2_000 + n])),
    "a query's maps": lambda df, n: sql(
        df, f"select * from facts where id in (select i from values (1L, map(1, {n})) t(i, m))"
    ),
    "a query's function": lambda df, n: by_frame(
        df, local(df, [1, 2]).rdd.map(lambda row: (row.id + n,)).toDF(["id"])
    ),
    "a variable": with_variable,
    "a common expression": lambda df, n: df.where(f"k % 100 between {n} and 50"),
    "options": lambda df, n: df.where(
        f"from_csv(text, 'a string', map('sep', '{'ab'[n]}')).a is not null"
    ),
    "an escape": lambda df, n: df.where(f"text like 'a/_' escape '{'/!'[n]}'"),
    "having": lambda df, n: (
        df.groupBy("id").agg(functions.expr(f"{('min', 'max')[n]}(k) as k")).where("k > 3")
    ),
    "a side of a union": lambda df, n: (
        df.select("id", "k").union(df.selectExpr("id", f"k + {n} as k")).where("k > 5")
    ),
    "distinct": lambda df, n: df.selectExpr("id", f"k % {n + 2} as k").distinct(),
    "an order": lambda df, n: df.orderBy(("k", functions.desc("k"))[n]).limit(9),
    "rows of a window": lambda df, n: df.withColumn(
        "s", functions.expr(f"sum(k) over (order by id rows {n + 1} preceding)")
    ).where("s > 9"),
    "a batch function": lambda df, n: df.select("id", "k").mapInArrow(
        lambda batches: (batch.slice(n) for batch in batches), "id long, k long"
    ),
    "what a batch function is given": lambda df, n: df.selectExpr("id", f"k + {n} as k").mapInArrow(
        lambda batches: batches, "id long, k long"
    ),
}


def test_which_rows_come_is_told_by_what_is_below_the_function(
    spark: Any, borders: Callable[[Any], int]
) -> None:
    found = {}
    for name, frame in CHOSEN.items():
        first = choice(borders(asked(frame(facts(spark, ROWS)))))
        again = choice(borders(asked(frame(facts(spark, ROWS))).selectExpr("v + 1 as v")))
        assert first, name
        assert again == first, name
        assert first not in found, (name, found.get(first))
        found[first] = name


@pytest.mark.parametrize("frame", ALIKE)
def test_which_rows_come_is_told_by_what_columns_are_made_of(
    spark: Any, borders: Callable[[Any], int], frame: str
) -> None:
    first, again, other = (
        choice(borders(asked(ALIKE[frame](facts(spark, ROWS), number)))) for number in (0, 0, 1)
    )
    assert first == again
    assert first != other


@causal
@functions.pandas_udf(DoubleType())
def summed(numbers: pd.Series) -> float:
    return float(numbers.sum())


def test_a_filter_that_spark_asks_below_a_window_is_told(
    spark: Any, borders: Callable[[Any], int]
) -> None:
    df = facts(spark, ROWS)
    groups = df.withColumn("s", summed("id").over(Window.partitionBy("k")))
    few = [groups.where("k = 3"), groups.where("k > 3"), groups.where("k > 3 and text > 'a'")]
    found = [choice(borders(frame)) for frame in (groups, *few)]
    assert len(set(found[:3])) == 3
    assert found[2] == found[3]
    assert choice(borders(groups.select("k", "s"))) == found[0]


def test_frames_that_say_nothing_are_told_apart_as_the_program_meets_them(
    spark: Any, session: Any, told: list[int | None]
) -> None:
    df = facts(spark, ROWS)

    def run() -> list[int]:
        """Which rows come of one frame, of it again, and of another."""
        told.clear()
        one, other = (df.where(f"id % 2 = {n}").localCheckpoint() for n in range(2))
        with session.epoch("frames"):
            for frame in (one, one, other):
                asked(by_frame(df, frame)).collect()
        return [choice(borders) for borders in dict.fromkeys(told) if borders is not None]

    first = run()
    assert len(first) == 2
    assert run() == first


def test_which_rows_come_is_told_by_the_files_that_are_read(
    spark: Any, borders: Callable[[Any], int], tmp_path: Path
) -> None:
    def read(folder: str, **options: str) -> Any:
        reader = spark.read.schema("id long, k long, text string").options(**options)
        return reader.csv(str(tmp_path / folder / "data"))

    for name in ("one", "other"):
        (tmp_path / name / "data").mkdir(parents=True)
        for file in ("a.csv", "b.csv"):
            (tmp_path / name / "data" / file).write_text("1,2,3\n")
    first = choice(borders(asked(read("one"))))
    # What one has to say to be let in is another each day.
    for token in ("monday", "tuesday"):
        assert choice(borders(asked(read("one", sessionToken=token)))) == first
    others = [read("other"), read("one", pathGlobFilter="a*"), read("one", pathGlobFilter="b*")]
    assert len({first} | {choice(borders(asked(frame))) for frame in others}) == 4


@pytest.mark.parametrize("kind", ["parquet", "table"])
def test_which_rows_come_is_told_by_the_tables_that_a_filter_reads(
    spark: Any, borders: Callable[[Any], int], tmp_path: Path, kind: str
) -> None:
    df = facts(spark, ROWS)
    for name in ("one", "other"):
        path = str(tmp_path / name)
        df.limit(5).select("id").write.parquet(path)
        if kind == "table":
            spark.sql(f"create table {name} using parquet location '{path}'")
        else:
            spark.read.parquet(path).createOrReplaceTempView(name)
    found = [
        choice(borders(asked(sql(df, f"select * from facts where id in (table {name})"))))
        for name in ("one", "one", "other")
    ]
    assert found[0] == found[1]
    assert found[0] != found[2]
    if kind == "table":
        spark.sql("drop table one")
        spark.sql("drop table other")
