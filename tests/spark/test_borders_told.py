"""What the driver's agent is told of the borders between the tasks of a stage, as Spark runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cuts import by_id, facts, settings
from epochs import drawn
from pyspark import cloudpickle
from pyspark.sql import functions

import clonos
from clonos._driver import attach, compiled
from clonos._driver.borders import stage_borders

# Few: what decides where they are is all that is looked at.
ROWS = 3_000
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
    return borders % 2**32 >> 17


def cut(borders: int) -> int:
    """What is left without the choice of rows: some may be left out below the function."""
    return borders & ~(2**17 - 2)


def placed(borders: int) -> int:
    return borders >> 32


def asked(df: Any) -> Any:
    return df.withColumn("v", drawn("id"))


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


def plain(name: str) -> Any:
    return functions.udf(lambda x: x, "long")(name)


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


# Of each two what a filter looks at is called the same, and is not.
ALIKE: dict[str, Callable[[Any, int], Any]] = {
    "a function's closure": lambda df, n: df.where(only(n)),
    "patterns": lambda df, n: df.where(f"text like any ('%{n}', '%{n}2')"),
    "a column of either side": lambda df, n: of_two(df).where(f"{'ab'[n]}.k > 5"),
    "a column that is computed": lambda df, n: df.withColumn(
        "flag", functions.expr(f"id % 2 = {n}")
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


def choice(borders: int) -> int:
    """Which rows come."""
    return borders >> 2 & 2**15 - 1


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
