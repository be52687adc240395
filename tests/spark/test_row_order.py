"""Rows without keys that a second query reads with other columns: where order tells them apart."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cuts import settings
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


def test_what_is_drawn_by_a_key_is_found_in_whichever_task_it_is(spark: Any, session: Any) -> None:
    merged = joined(spark, "merge")
    # How many partitions of a shuffle are read together depends on how wide its rows are.
    cut = {"parallelismFirst": "false", "minPartitionSize": "1"}
    names = {f"spark__sql__adaptive__coalescePartitions__{one}": cut[one] for one in cut}
    names["spark__sql__adaptive__advisoryPartitionSizeInBytes"] = "100k"
    with settings(spark, **names, spark__sql__shuffle__partitions="9"):
        few, whole = merged.select("id", "customer"), merged
        assert few.toDF(*few.columns).rdd.getNumPartitions() < whole.rdd.getNumPartitions()
        for name, v in {
            "uuid": clonos.functions.uuid(row_key="id"),
            "rand": clonos.functions.rand(row_key="id"),
        }.items():
            df = merged.withColumn("v", v)
            with session.epoch(f"moved {name}"):
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


def test_of_two_broadcast_joins_one_may_stream_the_other_side(spark: Any, session: Any) -> None:
    """Which of two sides Spark broadcasts depends on how wide it is, and so on what is read."""
    left = spark.range(0, 300, 1, 2).selectExpr("id a", "id % 10 k", "id n1", "-id n2")
    right = spark.range(0, 300, 1, 2).selectExpr("id b", "id % 10 k", "id * 2 m1")
    df = left.join(right, "k").withColumn("v", drawn_from_nothing())
    built = [physical(df.select(*read)) for read in (["*"], ["a", "b", "m1", "v"])]
    assert "BuildRight" in built[0]
    assert "BuildLeft" in built[1]
    assert_refused_or_same(session, "streamed", df, df.select("a", "b", "m1", "v"), ["a", "b"])


def test_a_broadcast_side_that_comes_by_a_shuffle_has_no_order(spark: Any, session: Any) -> None:
    grouped = orders(spark).groupBy("country", functions.expr("id % 3 as t"))
    of_each = grouped.agg(functions.max("note").alias("most"), functions.count("*").alias("n"))
    df = orders(spark).join(of_each, "country").withColumn("v", drawn("country"))
    assert "BuildRight" in physical(df)
    assert_refused_or_same(session, "of groups", df, df.select("id", "t", "v"), ["id", "t"])


def physical(df: Any) -> str:
    return str(df._jdf.queryExecution().executedPlan().toString())


def assert_refused_or_same(session: Any, name: str, df: Any, few: Any, key: list[str]) -> None:
    with session.epoch(name):
        first = {tuple(row[one] for one in key): row.v for row in df.collect()}
        try:
            again = {tuple(row[one] for one in key): row.v for row in few.collect()}
            first = {key: v for key, v in first.items() if key in again}
        except PySparkException as error:
            assert isinstance(errors.find(error), errors.ReplayDivergence)  # noqa: PT017
        else:
            assert again == first


def test_the_side_of_a_join_that_must_be_streamed_has_its_order(spark: Any, session: Any) -> None:
    few = customers(spark).select("customer", "level")
    of_all = few.join(orders(spark), "customer", "right")
    pairs = spark.range(0, 3, 1, 1).selectExpr("id as pair").hint("shuffle_replicate_nl")
    kept = spark.createDataFrame(
        orders(spark)
        .rdd.map(lambda row: (row.id % 7, row))
        .groupByKey(2)
        .flatMapValues(list)
        .map(lambda pair: (pair[1].id, pair[1].note))
        .cache(),
        "id long, note string",
    )
    sums = functions.expr("count(*) as n"), functions.expr("max(note) as most")
    grouped = orders(spark).groupBy("country").agg(*sums)
    some = functions.broadcast(orders(spark).where("id % 3 = 0").select("country").distinct())
    for name, frame in {
        "groups": orders(spark).join(functions.broadcast(grouped), "country"),
        "some": orders(spark).join(some, "country", "left_semi"),
        "a total": orders(spark).crossJoin(orders(spark).agg(*sums)),
        "right": of_all,
        "pairs": orders(spark).where("id < 99").crossJoin(pairs),
        "kept below": kept,
    }.items():
        df = frame.withColumn("v", clonos.functions.uuid())
        with session.epoch(name):
            first = Counter((row.id, row.v) for row in df.collect())
            assert Counter(map(tuple, df.select("id", "v").collect())) == first


def test_of_two_places_of_a_query_each_has_its_rows_answers_or_it_is_refused(
    spark: Any, session: Any
) -> None:
    rows = orders(spark)
    v = drawn("country")
    even, odd = (rows.where(f"id % 2 = {n}").select("id", v.alias("v")) for n in (0, 1))
    pairs = even.alias("a").join(
        functions.broadcast(odd).alias("b"), functions.expr("a.id + 1 = b.id")
    )
    with session.epoch("two places"):
        try:
            found = pairs.selectExpr("a.v as one", "b.v as other").collect()
        except PySparkException as error:
            assert isinstance(errors.find(error), errors.ReplayDivergence)  # noqa: PT017
        else:
            assert len({row.one for row in found} & {row.other for row in found}) == 0


def test_a_frame_has_its_order_in_whatever_asks(spark: Any, session: Any) -> None:
    """Where Spark keeps the function's plan apart from the query's."""
    df = joined(spark, "broadcast").withColumn("v", clonos.functions.uuid())
    few = df.select("note", "v")
    few.createOrReplaceTempView("in_order")
    with session.epoch("asked otherwise"):
        first = Counter((row.note, row.v) for row in df.collect())
        assert Counter(map(tuple, few.toLocalIterator())) == first
        greatest = spark.sql("select (select max(struct(note, v)) from in_order) as m").first()
        assert tuple(greatest.m) == max(first)
        kept = few.cache()
        assert Counter(map(tuple, kept.collect())) == first
        assert Counter(map(tuple, kept.orderBy("v").collect())) == first
        kept.unpersist()


def test_sides_of_a_union_that_the_optimizer_drops_are_not_others(spark: Any, session: Any) -> None:
    def side(kind: str) -> Any:
        grouped = spark.range(0, 200, 1, 2).selectExpr("id % 100 as id", "id % 5 as x")
        named = functions.lit(kind).alias("kind")
        return grouped.groupBy("id").agg(functions.max("x").alias("x")).select("*", named)

    all_sides = side("a").unionByName(side("b")).unionByName(side("c"))
    v = drawn("x")
    one, other = (all_sides.where(f"kind <> '{kind}'").withColumn("v", v) for kind in "ac")
    assert_refused_or_same(session, "sides", one, other.where("kind = 'b'"), ["id", "kind"])


@pytest.mark.parametrize("frame", ["table", "broadcast", "shuffled"])
def test_of_a_filter_below_the_function_rows_are_not_known_by_their_places(
    spark: Any, session: Any, frame: str
) -> None:
    df = {
        "table": orders,
        "broadcast": lambda spark: joined(spark, "broadcast"),
        "shuffled": lambda spark: orders(spark).repartition(3, "customer"),
    }[frame](spark)
    score = drawn("country")
    read = ["*"] if frame == "table" else ["id", "v"]
    whole = df.withColumn("v", score)
    half = df.where(f"id >= {ROWS // 2}").withColumn("v", score).select(*read)
    above = whole.where(f"id >= {ROWS // 2}").select("id", "v")
    with session.epoch(f"filtered {frame}"):
        first = by_id(whole)
        assert all(first[row.id] == row.v for row in above.collect())
        with pytest.raises(PySparkException) as refused:
            half.collect()
    error = errors.find(refused.value)
    assert isinstance(error, errors.ReplayDivergence)
    assert "filter" in str(error)
    with session.epoch(f"filtered {frame}, told apart"):
        keyed = drawn("country", row_key="id")
        first = by_id(df.withColumn("v", keyed))
        rows = df.where(f"id >= {ROWS // 2}").withColumn("v", keyed).collect()
        assert all(first[row.id] == row.v for row in rows)


def test_one_frame_has_its_order_however_it_is_read(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    """Written, counted, joined with itself, or read in a subquery: rows stay where they are."""
    rows = orders(spark).where("id % 3 = 0").withColumn("v", drawn("country"))
    with session.epoch("one frame"):
        first = {row.id: row.v for row in rows.collect()}
        rows.write.parquet(str(tmp_path / "written"))
        assert {
            row.id: row.v for row in spark.read.parquet(str(tmp_path / "written")).collect()
        } == (first)
        assert rows.agg(functions.sum("v")).first()[0] == pytest.approx(sum(first.values()))
        rows.createOrReplaceTempView("one_frame")
        for query in (
            "select id, v from one_frame where v >= 0",
            "with t as (select id, v, note from one_frame) select id, v from t limit 100000",
            "select a.id, a.v from one_frame a join one_frame b on a.id = b.id and a.v = b.v",
        ):
            assert {row.id: row.v for row in spark.sql(query).collect()} == first
        found = spark.sql("select id from one_frame where v = (select max(v) from one_frame)")
        assert first[found.first().id] == max(first.values())


def test_a_filter_reads_what_tells_rows_apart(spark: Any, session: Any) -> None:
    df = joined(spark, "merge").withColumn("v", drawn("customer"))
    # It stays above the function, so that more is read of the rows than the arguments.
    few = df.where(f"id >= {ROWS // 2}").select("customer", "v")
    assert_refused(session, "left out", df, few)


@pytest.mark.parametrize("name", ["rand", "uuid"])
def test_what_only_draws_gives_nothing_that_is_drawn_to_the_rows_of_another_frame(
    spark: Any, session: Any, name: str
) -> None:
    v = getattr(clonos.functions, name)().alias("v")
    for then in ("id % 2 = 1", "true"):
        with session.epoch(f"{name} {then}"):
            first = orders(spark).where("id % 2 = 0").select("id", v).collect()
            assert len(first) == len({row.v for row in first}) == ROWS // 2
            with pytest.raises(PySparkException) as refused:
                orders(spark).where(then).select("id", v).collect()
        assert "row_key=" in str(errors.find(refused.value))


def test_what_is_asked_in_a_filter_may_be_asked_over_fewer_rows(spark: Any, session: Any) -> None:
    """Spark makes an inner join of an outer one if a filter above leaves no other rows."""
    few = spark.range(0, ROWS, 3, 1).selectExpr("id as other")
    df = orders(spark).join(functions.broadcast(few), functions.expr("id = other"), "left")
    v = drawn_from_nothing()
    with session.epoch("outer"):
        drawn_of = by_id(df.withColumn("v", v))
        few_rows = df.where((v > 0.5) & functions.col("other").isNotNull())
        some = {row.id for row in few_rows.collect()}
        assert some == {row for row, v in drawn_of.items() if v > 0.5 and row % 3 == 0}
        with pytest.raises(PySparkException) as refused:
            few_rows.select("id").collect()
    assert isinstance(errors.find(refused.value), errors.ReplayDivergence)


def test_a_column_that_a_query_asks_in_two_places_is_found_when_it_runs_again(
    spark: Any, session: Any
) -> None:
    for name, v in {"result": drawn("country"), "services": clonos.functions.rand()}.items():
        df = orders(spark).where(v > 0.5).select("id", v.alias("v"))
        with session.epoch(name):
            first = sorted(df.collect())
            assert ROWS // 4 < len(first) < ROWS
            assert sorted(df.collect()) == first


def test_what_draws_is_refused_over_another_frame_however_often_it_is_asked(
    spark: Any, session: Any
) -> None:
    v = clonos.functions.uuid().alias("v")
    few, others = (orders(spark).where(f"id % 2 = {n}").select("id", v) for n in range(2))
    with session.epoch("three times"):
        few.collect()
        for ask in (lambda: others.take(5), others.collect, others.collect):
            with pytest.raises(PySparkException, match="row_key="):
                ask()
