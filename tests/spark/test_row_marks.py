"""Rows with equal arguments that trade places when they are computed again keep their answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from clonos import causal

# Rows, most of which share their text with others.
ROWS = [(number, f"text {number % 4}") for number in range(24)]


def shuffled(spark: Any) -> Any:
    """The rows in one task, in another order each time, which no plan tells."""

    def shuffle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            order = list(range(batch.num_rows))
            random.SystemRandom().shuffle(order)
            yield batch.take(pa.array(order))

    rows = spark.createDataFrame(ROWS, "id int, text string").repartition(1)
    return rows.mapInArrow(shuffle, rows.schema)


def in_order_of_arguments(spark: Any) -> Any:
    """The same, where a function is given the same arguments in the same order."""
    return shuffled(spark).sortWithinPartitions("text")


def counting(calls: Any) -> Callable[[str], int]:
    def ask(text: str) -> int:
        calls.add(1)
        return random.SystemRandom().randrange(2**31)

    return ask


def drawing() -> Callable[[str], int]:
    return lambda _text: random.SystemRandom().randrange(2**31)


def twice(session: Any, rows: Callable[[], Any], name: str = "twice") -> list[tuple[Any, ...]]:
    """The rows of a query that is run twice in an epoch, if both are the same."""
    with session.epoch(name):
        first, again = (sorted(map(tuple, rows().collect()), key=repr) for _ in range(2))
    assert first == again
    return first


@pytest.mark.parametrize("order", [shuffled, in_order_of_arguments])
def test_rows_keep_their_answers(session: Any, spark: Any, order: Callable[[Any], Any]) -> None:
    calls = spark.sparkContext.accumulator(0)
    ask = causal("int", per="row")(counting(calls))
    rows = order(spark).withColumn("answer", ask("text"))
    answers = twice(session, lambda: rows)
    assert calls.value == len(ROWS) == len({answer for *_, answer in answers})


def test_they_do_in_sql_and_in_filters(session: Any, spark: Any) -> None:
    calls = spark.sparkContext.accumulator(0)
    spark.udf.register("ask", causal("int", per="row")(counting(calls)))
    in_order_of_arguments(spark).createOrReplaceTempView("shuffled")
    twice(session, lambda: spark.sql("select id, ask(text) % 2 as odd from shuffled"), "select")
    twice(session, lambda: spark.sql("select id from shuffled where ask(text) % 2 = 1"), "where")
    assert calls.value == 2 * len(ROWS)


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["pandas", "arrow", "arrow_iter", "none", "two", "keyword"])
def test_functions_of_all_kinds_are_given_their_arguments_only(
    session: Any, spark: Any, kind: str
) -> None:
    from pyspark.sql import functions

    def draw(count: int) -> list[int]:
        return [random.SystemRandom().randrange(2**31) for _ in range(count)]

    def pandas(text: Any) -> Any:
        return text.map(lambda _: draw(1)[0])

    def arrow(text: pa.Array) -> pa.Array:
        return pa.array(draw(len(text)), pa.int32())

    def arrow_iter(texts: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return map(arrow, texts)

    def plain(text: str = "", another: int = 0) -> int:
        assert (text[:4] or "text", another) in {("text", 0), ("text", 1), ("text", 2)}
        return draw(1)[0]

    by_row = causal("int", per="row")(plain)
    arrow_types = {"text": pa.Array, "return": pa.Array}
    iter_types = {"texts": Iterator[pa.Array], "return": Iterator[pa.Array]}
    arrow.__annotations__, arrow_iter.__annotations__ = arrow_types, iter_types
    pandas.__annotations__ = {"text": "pd.Series", "return": "pd.Series"}
    makers: dict[str, Callable[[], Any]] = {
        "pandas": lambda: causal(
            functions.pandas_udf("int", functions.PandasUDFType.SCALAR)(pandas)
        )("text"),
        "arrow": lambda: causal(functions.arrow_udf(arrow, "int"))("text"),
        "arrow_iter": lambda: causal(functions.arrow_udf(arrow_iter, "int"))("text"),
        "none": by_row,
        "two": lambda: by_row("text", functions.lit(1)),
        "keyword": lambda: by_row("text", another=functions.lit(2)),
    }
    rows = in_order_of_arguments(spark).withColumn("answer", makers[kind]())
    assert len({answer for *_, answer in twice(session, lambda: rows)}) == len(ROWS)


def test_columns_that_are_drawn_need_no_key(session: Any, spark: Any) -> None:
    from clonos import functions

    names, numbers = functions.uuid().alias("name"), functions.rand().alias("number")
    for order in (shuffled, in_order_of_arguments):
        rows = order(spark).select("id", names, numbers)
        answers = twice(session, lambda rows=rows: rows, order.__name__)
        assert len({answer[1:] for answer in answers}) == len(ROWS)


def test_columns_that_are_drawn_are_the_same_whatever_else_is_read(
    session: Any, spark: Any
) -> None:
    from clonos import functions

    names = functions.uuid().alias("name")
    rows = spark.createDataFrame(ROWS, "id int, text string").repartition(2, "id")
    with session.epoch("read"):
        drawn = rows.select("id", names)
        first = {row.name for row in drawn.collect()}
        assert {row.name for row in drawn.select("name").collect()} == first
        assert drawn.where("name > 'z'").count() == 0
        assert drawn.select("name").distinct().count() == len(ROWS)


@pytest.mark.whole
@pytest.mark.parametrize("outer", ["row", "value", "plain"])
def test_calls_inside_of_calls(session: Any, spark: Any, outer: str) -> None:
    from pyspark.sql import functions

    def draw(_given: Any) -> int:
        return random.SystemRandom().randrange(2**31)

    ask = causal("int", per="row")(draw)
    around = {
        "row": causal("int", per="row")(lambda given: draw(given) + 0),
        "value": causal("int", per="value")(lambda given: draw(given) + 1),
        "plain": functions.udf(lambda given: given + 1, "int"),
    }[outer]
    rows = in_order_of_arguments(spark)
    twice(session, lambda: rows.select("id", around(ask("text")).alias("n")), "inside")
    three = around(around(ask("text")))
    twice(session, lambda: rows.select("id", three.alias("n"), ask("text").alias("m")), "three")
    twice(session, lambda: rows.where(around(ask("text")) % 2 == 0).select("id"), "filter")
    inner = functions.udf(lambda text: text + "!", "string")
    twice(session, lambda: rows.select("id", ask(inner("text")).alias("n")), "outside")


def test_where_a_null_is_tells_rows_apart(session: Any, spark: Any) -> None:
    pairs = [(5, None), (None, 5), (5, 5), (None, None), (None, 7), (7, None)]
    rows = shuffled(spark).join(spark.createDataFrame(pairs, "a int, b int").hint("broadcast"))
    rows = rows.where("id = 3").select("a", "b", causal("int", per="row")(drawing())("text"))
    for number in range(5):
        twice(session, lambda: rows, f"nulls {number}")


def test_what_is_another_in_each_run_for_some_rows_asks_nobody_again(
    session: Any, spark: Any
) -> None:
    from pyspark.sql import functions

    calls = spark.sparkContext.accumulator(0)
    ask = causal("int", per="row")(counting(calls))
    coin = functions.udf(lambda _: random.SystemRandom().choice("ab"), "string")
    rows = spark.createDataFrame([(n, f"text {n}") for n in range(24)], "id int, text string")
    rows = rows.withColumn("coin", coin("id")).repartition(1)
    rows = rows.groupBy("id", "text").agg(functions.max("coin").alias("coin"))
    answers = rows.withColumn("answer", ask("text"))
    with session.epoch("coins"):
        first, again = ({row.id: row.answer for row in answers.collect()} for _ in range(2))
    assert first == again
    assert calls.value == 24


def test_each_call_has_a_key_of_its_own_in_whichever_order_rows_come(
    session: Any, spark: Any, tmp_path: Any
) -> None:
    import clonos

    (tmp_path / "keys").mkdir()

    def pay(_text: str) -> int:
        key = clonos.idempotency_key()
        with (tmp_path / "keys" / key).open("a") as known:
            known.write("x")
        if len(list((tmp_path / "keys").iterdir())) == 7 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise RuntimeError("the first attempt ends here")
        return random.SystemRandom().randrange(2**31)

    rows = in_order_of_arguments(spark).selectExpr("id", "'same' as text")
    answers = rows.withColumn("answer", causal("int", per="row")(pay)("text")).collect()
    assert len({row.answer for row in answers}) == len(ROWS)
    asked = sorted(len(path.read_text()) for path in (tmp_path / "keys").iterdir())
    # The call that failed is made again with its key.
    assert asked == [1] * (len(ROWS) - 1) + [2]


def test_what_an_attempt_had_not_answered_takes_no_answer_of_others(
    session: Any, spark: Any, tmp_path: Any
) -> None:
    mark = tmp_path / "failed"

    def ask(text: str) -> int:
        if random.SystemRandom().random() < 0.3 and not mark.exists():
            mark.touch()
            raise RuntimeError("the first attempt ends here")
        return random.SystemRandom().randrange(2**31)

    rows = in_order_of_arguments(spark).withColumn("answer", causal("int", per="row")(ask)("text"))
    assert len({answer for *_, answer in twice(session, lambda: rows)}) == len(ROWS)


def test_a_query_that_shows_other_columns_gets_the_same_answers(session: Any, spark: Any) -> None:
    ask = causal("int", per="row")(drawing())
    rows = spark.createDataFrame(ROWS, "id int, text string").repartition(1).sort("id")
    rows = rows.withColumn("answer", ask("text"))
    with session.epoch("columns"):
        answers = [row.answer for row in rows.collect()]
        assert [row.answer for row in rows.select("answer").collect()] == answers
        assert [row.answer for row in rows.select("text", "answer").collect()] == answers
        assert [row.answer for row in rows.collect()] == answers


def test_values_that_are_others_each_time_do_no_harm(session: Any, spark: Any) -> None:
    from pyspark.sql import functions

    calls = spark.sparkContext.accumulator(0)
    ask = causal("int", per="row")(counting(calls))
    rows = spark.range(12, numPartitions=1).repartition(1).sort("id")
    with session.epoch("clock"):
        answers = [
            [
                row.answer
                for row in rows.withColumn("at", functions.lit(number))
                .select(
                    "id", "at", (functions.col("id") * 0.1).alias("f"), ask("id").alias("answer")
                )
                .collect()
            ]
            for number in (1, 1)
        ]
    assert answers[0] == answers[1]
    assert calls.value == 12


def mark_arguments(rows: Any) -> str:
    """Text of the plan that Spark runs."""
    return str(rows._jdf.queryExecution().optimizedPlan().toString())


def test_only_rows_that_may_trade_places_are_marked(session: Any, spark: Any) -> None:
    from pyspark.sql import functions

    ask, keyed = causal("int", per="row")(len), causal("int", per="row")(len)
    by_value = causal("int", per="value")(len)
    plain = spark.createDataFrame(ROWS, "id int, text string")
    apart = plain.repartition(2)
    assert "xxhash64" in mark_arguments(apart.select("id", ask("text")))
    unmarked = [
        plain.select("id", ask("text")),
        plain.where("id > 3").select("id", functions.explode(functions.array(ask("text")))),
        apart.select("id", keyed("text", row_key="id")),
        apart.select("id", by_value("text")),
        apart.select("id", functions.udf(len, "int").asNondeterministic()("text")),
    ]
    for rows in unmarked:
        assert "xxhash64" not in mark_arguments(rows)
    apart.select("id", functions.udf(len, "int").asNondeterministic()("text")).collect()


def hashed(rows: Any) -> str:
    """The columns of the mark in a plan."""
    plan = mark_arguments(rows)
    return plan[plan.index("xxhash64(") : plan.index(", 42)")]


def test_what_is_drawn_by_spark_is_not_in_a_mark(session: Any, spark: Any) -> None:
    from pyspark.sql import functions

    ask = causal("int", per="row")(len)
    rows = spark.createDataFrame(ROWS, "id int, text string").withColumn("drawn", functions.rand())
    rows = rows.withColumn("number", functions.monotonically_increasing_id()).repartition(2)
    rows = rows.withColumn("later", functions.col("number") + 1).withColumn("answer", ask("text"))
    names = hashed(rows)
    assert "id#" in names
    assert "text#" in names
    assert not any(name in names for name in ("drawn#", "number#", "later#"))
    rows.collect()


def test_floats_are_in_a_mark_unless_they_are_sums_or_inexact(
    session: Any, spark: Any, tmp_path: Any
) -> None:
    from pyspark.sql import functions

    ask = causal("int", per="row")(len)
    columns = "id int, text string, price double, prices array<float>"
    given = [(*row, row[0] / 3, [row[0] / 7]) for row in ROWS]
    made = spark.createDataFrame(given, columns)
    made.write.parquet(str(tmp_path / "rows"))
    read = spark.read.parquet(str(tmp_path / "rows"))
    for given_rows in (made, read):
        dear = given_rows.where("price < 100").withColumn("dear", functions.col("price") * 1.5)
        rows = dear.withColumn("log", functions.log("dear")).repartition(2)
        names = hashed(rows.withColumn("answer", ask("text")))
        assert all(f"{name}#" in names for name in ("id", "text", "price", "prices", "dear"))
        assert "log#" not in names
        summed = rows.groupBy("id", "text").agg(
            functions.sum("price").alias("total"),
            functions.sum("price").cast("string").alias("shown"),
            functions.count("*").alias("rows"),
        )
        # Of groups alone the keys are: see test_row_keys.py.
        others = rows.selectExpr("id", "text", "price", "text", "1L")
        names = hashed(summed.union(others).withColumn("answer", ask("text")))
        assert all(f"{name}#" in names for name in ("id", "text", "rows"))
        assert not any(f"{name}#" in names for name in ("total", "shown"))
    cached = read.groupBy("id", "text").agg(functions.sum("price").alias("total")).cache()
    names = hashed(cached.repartition(2).withColumn("answer", ask("text")))
    assert "id#" in names
    assert "total#" not in names


def test_rows_that_only_a_float_tells_apart_keep_their_answers(
    session: Any, spark: Any, tmp_path: Any
) -> None:
    from pyspark.sql import functions

    given = [("same", number / 3) for number in range(24)]
    spark.createDataFrame(given, "text string, price double").write.parquet(str(tmp_path / "rows"))
    read = spark.read.parquet(str(tmp_path / "rows")).where("price >= 0").repartition(1)
    drawn = functions.udf(lambda: random.SystemRandom().random(), "double").asNondeterministic()
    ask = causal("int", per="row")(drawing())
    rows = read.sortWithinPartitions(drawn()).select("price", ask("text").alias("answer"))
    with session.epoch("floats"):
        found = [{row.price: row.answer for row in rows.collect()} for _ in range(2)]
    assert list(found[0]) != list(found[1])
    assert found[0] == found[1]
    assert len(set(found[0].values())) == 24


def test_the_rule_goes_with_the_session(plain_spark: Any) -> None:
    import clonos

    for _ in range(2):
        with clonos.attach(plain_spark):
            ask = causal("int", per="row")(len)
            rows = plain_spark.range(3).repartition(2)
            rows = rows.selectExpr("id", "cast(id as string) as text")
            assert "xxhash64" in mark_arguments(rows.select("id", ask("text")))
        assert plain_spark._jsparkSession.experimental().extraOptimizations().isEmpty()


def test_a_function_that_cannot_be_pickled_fails_alone(session: Any, spark: Any) -> None:
    import threading

    from clonos.errors import ConfigError

    lock = threading.Lock()

    def locked(_n: int) -> int:
        with lock:
            return 1

    rows = spark.range(3).repartition(2).selectExpr("id", "cast(id as string) as text")
    with pytest.raises(ConfigError, match="lock"):
        rows.select(causal("int", per="row")(locked)("id"))
    assert "xxhash64" in mark_arguments(rows.select("id", causal("int", per="row")(len)("text")))


def test_functions_that_no_column_has_are_forgotten(session: Any, spark: Any) -> None:
    import gc

    def build() -> None:
        spark.range(3).repartition(2).select(causal("int", per="row")(lambda n: n)("id")).collect()

    sizes = []
    for _ in range(12):
        build()
        gc.collect()
        spark._jvm.System.gc()
        sizes.append(session._marks._rule.size())
    assert sizes[-1] < 10, sizes


@pytest.mark.whole
def test_rows_of_a_join_keep_their_answers_on_executors(cluster: Any) -> None:
    session, spark = cluster, cluster.spark
    ask = causal("int", per="row")(drawing())
    rows = spark.createDataFrame([(n, f"text {n % 7}") for n in range(20)], "id int, text string")
    spark.udf.register("ask", ask)
    rows.createOrReplaceTempView("reviews")
    query = """select /*+ merge(b) */ a.id, b.id, ask(b.text)
               from reviews a join reviews b on a.text = b.text"""
    for number in range(5):
        assert len(twice(session, lambda: spark.sql(query), f"join {number}")) == 58
