"""Which function, and which use of it: two of everything in one query, also after a restart."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from epochs import Failed, again, drawn, values
from pyspark import cloudpickle
from pyspark.sql import functions as sf

import clonos
from clonos import causal
from clonos.errors import ReplayDivergence, find

ROWS = 40
pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def plus(n: int) -> Callable[[int], int]:
    def add(x: int) -> int:
        return x + n

    return add


class Scaled:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, x: int) -> int:
        return x * self.factor


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (plus(1), plus(100)),
        (functools.partial(int.__add__, 1), functools.partial(int.__add__, 100)),
        (Scaled(2), Scaled(3)),
        (lambda x: x + 5, lambda x: x * 5),
    ],
    ids=["factory", "partial", "instances", "lambdas"],
)
def test_two_functions_of_one_name_give_their_own_answers(
    spark: Any, session: Any, one: Any, other: Any
) -> None:
    f, g = causal("long")(one), causal("long")(other)
    numbers = spark.range(ROWS)
    expected = sorted((x, one(x), other(x)) for x in range(ROWS))
    assert values(numbers.select("id", f("id"), g("id"))) == expected
    joined = numbers.select("id", f("id").alias("f")).join(
        numbers.select("id", g("id").alias("g")), "id"
    )
    assert values(joined) == expected
    with session.epoch("in turn"):
        first = values(numbers.select("id", f("id")))
        second = values(numbers.select("id", g("id")))
    assert first == [(x, one(x)) for x in range(ROWS)]
    assert second == [(x, other(x)) for x in range(ROWS)]


def test_in_another_order_after_a_restart_each_function_finds_its_own(
    spark: Any, session: Any
) -> None:
    def noisy(n: int) -> Any:
        return causal("double")(lambda _x: n + random.random())

    numbers = spark.range(ROWS)
    orders = [(1, 100), (100, 1)]

    def make() -> Any:
        functions = [noisy(n) for n in orders.pop(0)]
        return values(numbers.select("id", *(fn("id") for fn in functions)))

    first, second = again(session, make)
    assert [(x, b, a) for x, a, b in second] == first


def selected_twice(df: Any) -> Any:
    return df.select(drawn("id"), drawn("id"))


def filtered_and_selected(df: Any) -> Any:
    return df.where(drawn("id") > 0.2).select(drawn("id"), "id")


def nested(df: Any) -> Any:
    return df.select(drawn(drawn("id")))


def one_column_filtered_and_selected(df: Any) -> Any:
    column = drawn("id")
    return df.where(column > 0).select(column, "id")


def one_column_side_by_side(df: Any) -> Any:
    column = drawn("id")
    return df.select(column, column.alias("again"))


def joined(df: Any) -> Any:
    left, right = (df.select("id", drawn("id").alias(name)) for name in "ab")
    return left.join(right, "id")


def union_with_itself(df: Any) -> Any:
    scored = df.select("id", drawn("id"))
    return scored.union(scored)


def joined_with_itself(df: Any) -> Any:
    scored = df.select("id", drawn("id").alias("a"))
    return scored.join(scored.withColumnRenamed("a", "b"), "id")


def aggregated_and_joined(df: Any) -> Any:
    scored = df.select("id", drawn("id").alias("a"))
    return scored.repartition(3, "id").join(scored.groupBy("a").count(), "a")


@pytest.mark.parametrize(
    "query",
    [
        selected_twice,
        filtered_and_selected,
        nested,
        one_column_filtered_and_selected,
        one_column_side_by_side,
        joined,
        union_with_itself,
        joined_with_itself,
        aggregated_and_joined,
    ],
)
def test_uses_in_one_query_are_told_apart_and_found_again(
    spark: Any, session: Any, query: Any
) -> None:
    first, second = again(session, lambda: values(query(spark.range(0, ROWS, 1, 3))))
    assert first
    assert second == first


def test_one_function_on_two_tables_whose_columns_have_one_name(spark: Any, session: Any) -> None:
    a = spark.createDataFrame([(i, f"a{i}") for i in range(ROWS)], "id long, text string")
    b = spark.createDataFrame([(i, f"b{i}") for i in range(ROWS)], "id long, text string")
    score = causal("string", uid="score")(lambda text: text + str(random.random()))

    def joined() -> Any:
        left = a.select("id", score("text").alias("l"))
        return values(left.join(b.select("id", score("text").alias("r")), "id"))

    first, second = again(session, joined)
    assert second == first
    assert all(left.startswith("a") and right.startswith("b") for _, left, right in first)
    in_turn = again(session, lambda: [values(df.select("id", score("text"))) for df in (a, b)])
    assert in_turn[0] == in_turn[1]


def test_a_table_asked_for_twice_in_an_epoch_is_asked_once(spark: Any, session: Any) -> None:
    scored = spark.range(0, ROWS, 1, 3).select("id", drawn("id").alias("a"))
    with session.epoch("twice"):
        first = values(scored)
        assert values(scored) == first
        assert values(scored.where("id > 10")) == [row for row in first if row[0] > 10]
        assert values(scored.repartition(2)) == first


def test_registered_functions_stand_in_sql_as_often_as_one_likes(spark: Any, session: Any) -> None:
    spark.udf.register("drawn", drawn)
    spark.range(ROWS).createOrReplaceTempView("numbers")
    query = """
        with scored as (select id, drawn(id) as a, drawn(id) as b from numbers)
        select x.id, x.a, x.b, drawn(x.a) from scored x join scored y using (id)
        where x.a in (select drawn(id) from numbers) or x.b >= 0
    """
    first, second = again(session, lambda: values(spark.sql(query)))
    assert len(first) == ROWS
    assert second == first


@pytest.mark.parametrize("change", ["closure", "global"])
def test_code_that_changed_is_refused(
    spark: Any, session: Any, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(prompt: str) -> Any:
        monkeypatch.setitem(globals(), "PROMPT", prompt)
        return causal("string", uid="prompted")(
            (lambda x: f"{prompt} {x}") if change == "closure" else (lambda x: f"{PROMPT} {x}")
        )

    def run(prompt: str) -> Any:
        return values(spark.range(ROWS).select(scored(prompt)("id")))

    prompts = ["old", "new"]
    with pytest.raises(Exception, match="REPLAY_DIVERGENCE") as refused:
        again(session, lambda: run(prompts.pop(0)))
    assert isinstance(find(refused.value), ReplayDivergence)
    with session.epoch("again"):
        assert len(run("old")) == ROWS


PROMPT = ""


def test_a_version_of_the_users_own_decides_what_is_a_change(spark: Any, session: Any) -> None:
    def scored(version: str, n: int) -> Any:
        return causal("long", uid="versioned", code_version=version)(plus(n))

    def run(version: str, n: int) -> Any:
        return values(spark.range(ROWS).select(scored(version, n)("id")))

    versions = ["v1", "v2"]
    with pytest.raises(Exception, match="REPLAY_DIVERGENCE"):
        again(session, lambda: run(versions.pop(0), 1))
    with session.epoch("again"):
        # What `plus(2)` would answer differs; the user says that it is the same function.
        assert run("v1", 2) == [(x + 1,) for x in range(ROWS)]


def test_uids_keep_clear_of_the_names_of_logs() -> None:
    for uid in ("", "a#2", "a~1", "a\nb"):
        with pytest.raises(clonos.errors.ConfigError, match="uid"):
            causal("long", uid=uid)(plus(1))


@pytest.mark.parametrize("session_of", ["attach", "the program", "each start"])
def test_uses_are_found_again_by_a_stream_that_starts_again(
    spark: Any, session: Any, tmp_path: Any, session_of: str
) -> None:
    seen: list[dict[int, Any]] = []
    own = spark if session_of == "attach" else spark.newSession()

    def start() -> None:
        query = (
            (spark.newSession() if session_of == "each start" else own)
            .readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 20)
            .option("numPartitions", 2)
            .load()
            .select("value", drawn("value").alias("a"), drawn("value").alias("b"))
        )

        def write(batch: Any, number: int) -> None:
            rows = batch.withColumn("c", drawn("value")).collect()
            if number == 1:
                seen.append({row.value: tuple(row) for row in rows})
                if len(seen) == 1:
                    raise Failed

        running = (
            query.writeStream.foreachBatch(session.foreach_batch(write))
            .option("checkpointLocation", str(tmp_path / "c"))
            .start()
        )
        wanted = len(seen) + 1
        try:
            while len(seen) < wanted:
                running.awaitTermination(1)
            # The failure of the first run is raised here.
            running.awaitTermination(2)
        finally:
            running.stop()

    with pytest.raises(Exception, match="Failed"):
        start()
    start()
    assert seen[0] == seen[1]


def test_a_stream_that_a_tagged_thread_starts_again_finds_its_uses(
    spark: Any, session: Any, tmp_path: Any
) -> None:
    spark.sparkContext.addJobTag("nightly")
    try:
        test_uses_are_found_again_by_a_stream_that_starts_again(spark, session, tmp_path, "attach")
    finally:
        spark.sparkContext.removeJobTag("nightly")


def test_a_stream_of_two_sources_finds_its_uses_again_in_whichever_batch_it_starts(
    spark: Any, session: Any, tmp_path: Any
) -> None:
    calls, mended = tmp_path / "calls", tmp_path / "mended"
    numbers = {"both/0": range(10), "both/1": range(10, 20), "once/0": range(20, 30)}
    for name, rows in numbers.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        spark.createDataFrame([(n,) for n in rows], "n long").write.json(str(tmp_path / name))

    @causal("double", uid="asked")
    def asked(n: int) -> float:
        with calls.open("a") as file:
            file.write(f"{n}\n")
        return random.random()

    @sf.udf("double")
    def failing(n: int, value: float) -> float:
        if n == 15 and not mended.exists():
            raise Failed
        return value

    def run() -> None:
        reader = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
        # The second has something new in the first batch only.
        parts = [reader.json(str(tmp_path / name / "*")) for name in ("both", "once")]
        rows = parts[0].union(parts[1]).select("n", asked("n").alias("v")).repartition(1)
        writer = rows.select("n", failing("n", "v").alias("v")).writeStream.format("json")
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        writer.start(str(tmp_path / "out")).awaitTermination()

    with pytest.raises(Exception, match="Failed"):
        run()
    mended.touch()
    run()
    assert sorted(map(int, calls.read_text().split())) == list(range(30))
    assert spark.read.json(str(tmp_path / "out")).count() == 30


def test_columns_of_services_stand_side_by_side(spark: Any, session: Any) -> None:
    def both() -> Any:
        functions = clonos.functions
        row = spark.range(5).select(
            "id", functions.now(), functions.rand(), functions.rand(), functions.uuid()
        )
        return values(row.withColumn("more", sf.lit(1)))

    first, second = again(session, both)
    assert second == first
    assert all(row[2] != row[3] for row in first)


@pytest.mark.parametrize("uid", [None, "given"])
def test_equal_rows_of_two_tables_have_their_own_answers(
    spark: Any, session: Any, uid: str | None
) -> None:
    score = causal("double", uid=uid)(lambda _row: random.random())
    a, b = spark.range(3), spark.range(10).selectExpr("id AS number")

    def in_turn() -> list[Any]:
        return [values(a.select("id", score("id"))), values(b.select("number", score("number")))]

    first, second = again(session, in_turn)
    assert first == second
    assert not set(first[0]) & set(first[1])


def column_of(spark: Any) -> Callable[[Any], Any]:
    """One column, whatever table it is put into."""
    column = causal("double")(lambda _x: random.random())("id").alias("answer")
    return lambda table: spark.table(table).select("id", column)


def sql_of(spark: Any) -> Callable[[Any], Any]:
    """One name in SQL, whatever table it is asked of."""
    spark.udf.register("drawn", drawn)
    return lambda table: spark.sql(f"SELECT id, drawn(id) AS answer FROM {table}")


@pytest.fixture
def two_tables(spark: Any) -> None:
    spark.range(0, ROWS, 1, 2).createOrReplaceTempView("a")
    spark.range(0, 2 * ROWS, 1, 3).createOrReplaceTempView("b")


@pytest.mark.usefixtures("two_tables")
@pytest.mark.parametrize("of", [column_of, sql_of])
def test_what_is_used_with_two_tables_in_turn_is_two_uses(
    spark: Any, session: Any, of: Callable[[Any], Any]
) -> None:
    over = of(spark)

    def in_turn() -> list[Any]:
        return [values(over(table)) for table in ("a", "b", "a")]

    first, second = again(session, in_turn)
    assert first == second
    assert first[0] == first[2]
    assert not set(first[0]) & set(first[1])


@pytest.mark.usefixtures("two_tables")
@pytest.mark.parametrize("join", ["broadcast", "merge"])
@pytest.mark.parametrize("scope", ["execution", "epoch"])
def test_in_sql_both_sides_of_a_join_are_two_uses(
    spark: Any, session: Any, scope: str, join: str
) -> None:
    over = sql_of(spark)

    def joined() -> Any:
        b = over("b").withColumnRenamed("answer", "other").hint(join)
        return values(over("a").join(b, "id"))

    first, second = again(session, joined) if scope == "epoch" else (joined(), None)
    assert len(first) == ROWS
    assert not [row for row in first if row[1] == row[2]]
    assert scope == "execution" or first == second


@pytest.mark.usefixtures("two_tables")
def test_a_column_is_one_use_wherever_it_stands_in_a_query(spark: Any, session: Any) -> None:
    of_row = causal("double")(lambda _x: random.random())("id")

    def thrice() -> Any:
        kept = spark.table("a").where(of_row > 0.5)
        count = kept.count()
        shown = values(kept.repartition(3, "id").select("id", of_row))
        return count, shown, values(spark.table("a").select("id", of_row))

    first, second = again(session, thrice)
    assert first == second
    count, shown, every = first
    assert 0 < count == len(shown) < ROWS == len(every)
    assert set(shown) <= set(every)
    assert all(answer > 0.5 for _id, answer in shown)


@pytest.mark.usefixtures("two_tables")
def test_in_sql_equal_calls_are_one_function_whatever_their_spelling(
    spark: Any, session: Any
) -> None:
    assert session.spark is spark
    spark.udf.register("drawn", causal("double")(lambda x, place=0: x + place + random.random()))
    assert len(values(spark.sql("SELECT drawn(ID), count(*) FROM a GROUP BY drawn(id)"))) == ROWS
    equal = spark.sql("SELECT drawn(id + 1) = drawn(1 + id) FROM a GROUP BY drawn(1 + id)")
    assert {row[0] for row in equal.collect()} == {True}
    placed = spark.sql("SELECT drawn(place => 100, x => id) AS answer FROM a").collect()
    assert all(row.answer >= 100 for row in placed)


@pytest.mark.usefixtures("two_tables")
def test_a_view_of_sql_that_is_cached_is_read_from_there(spark: Any, session: Any) -> None:
    assert session.spark is spark
    spark.udf.register("drawn", drawn)
    spark.sql("CREATE OR REPLACE TEMP VIEW v AS SELECT id, drawn(y) FROM (SELECT id, id y FROM a)")
    spark.sql("CACHE TABLE v")
    try:
        assert values(spark.table("v")) == values(spark.sql("SELECT * FROM v"))
    finally:
        spark.sql("UNCACHE TABLE v")


def test_two_actions_on_a_micro_batch_have_one_answer(
    spark: Any, session: Any, tmp_path: Any
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        spark.range(number * 10, number * 10 + 10).write.mode("append").parquet(
            str(tmp_path / "in")
        )
    seen: dict[int, list[Any]] = {}

    def twice(batch: Any, number: int) -> None:
        seen[number] = [values(batch), sorted(map(tuple, batch.rdd.collect()))]

    lines = spark.readStream.schema("id long").option("maxFilesPerTrigger", 4)
    answered = lines.parquet(str(tmp_path / "in")).select("id", drawn("id"))
    query = (
        answered.writeStream.foreachBatch(session.foreach_batch(twice))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(seen) > 1
    for first, second in seen.values():
        assert first == second


def test_a_frame_that_is_ordered_by_a_column_it_lost_has_its_answers(
    spark: Any, session: Any
) -> None:
    table = spark.range(0, ROWS, 1, 2).selectExpr("id", "-id AS other")
    answered = table.select("id", drawn("id"))
    with session.epoch("ordered"):
        assert values(answered) == values(answered.orderBy(table["other"]))


@pytest.mark.parametrize("partitions", [(2, 1), (4, 1), (4, 3), (1, 4)])
def test_coalesced_partitions_have_the_answers_they_had(
    spark: Any, session: Any, partitions: tuple[int, int]
) -> None:
    answered = spark.range(0, ROWS, 1, 4).select("id", drawn("id"))
    one, other = partitions
    with session.epoch("coalesced"):
        assert values(answered.coalesce(one)) == values(answered.coalesce(other))
        assert values(answered) == values(answered.coalesce(one))


def test_rows_that_were_counted_are_those_that_are_written(spark: Any, session: Any) -> None:
    answered = spark.range(0, ROWS, 1, 4).select("id", drawn("id").alias("answer"))
    kept = answered.where("answer > 0.5")
    with session.epoch("counted"):
        count = kept.count()
        assert len(kept.coalesce(1).collect()) == count
