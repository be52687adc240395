"""Rows with equal arguments keep their answers when Spark cuts them into other partitions."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from epochs import again
from pyspark import InheritableThread, TaskContext
from pyspark.sql.functions import pandas_udf
from pyspark.sql.types import LongType

import clonos
from clonos import causal, functions

# Each text and number is that of twelve rows.
LEFT = [(number, f"text {number % 10}") for number in range(120)]
RIGHT = [(f"text {number % 10}", number) for number in range(20)]
# Of 240.
FAILS_AFTER = 40
BROADCAST, MERGE = "10m", "-1"


@pytest.fixture
def answers(spark: Any) -> Callable[[Any], Any]:
    """Returns the rows of a join with a function's answers."""
    left = spark.createDataFrame(LEFT, "id int, text string").repartition(6)
    right = spark.createDataFrame(RIGHT, "text string, n int")
    joined = left.join(right, "text")
    return lambda ask: joined.select("id", "n", "text", ask("text", "n").alias("answer")).collect()


@pytest.fixture
def cut(spark: Any) -> Any:
    """Sets how Spark joins, and whether it chooses the number of partitions."""
    names = "spark.sql.autoBroadcastJoinThreshold", "spark.sql.adaptive.enabled"
    before = [spark.conf.get(name) for name in names]

    def set_to(*values: str) -> None:
        for name, value in zip(names, values, strict=True):
            spark.conf.set(name, value)

    yield set_to
    set_to(*before)


# How rows are cut first, and then.
ways = pytest.mark.parametrize(
    "way",
    [
        ((MERGE, "false"), (MERGE, "true")),
        ((MERGE, "true"), (MERGE, "false")),
        ((BROADCAST, "false"), (MERGE, "true")),
    ],
    ids=["coalesced later", "coalesced first", "merged later"],
)


@ways
def test_rows_keep_their_answers(
    session: Any, spark: Any, answers: Callable[[Any], Any], cut: Callable[..., None], way: Any
) -> None:
    calls = spark.sparkContext.accumulator(0)

    def ask(text: str, n: int) -> int:
        calls.add(1)
        return random.SystemRandom().randrange(2**31)

    rows = causal("int", per="row")(ask)
    with session.epoch("relaid"):
        cut(*way[0])
        before = answers(rows)
        cut(*way[1])
        again = answers(rows)
    assert calls.value == len(before) == 240
    assert sorted(map(tuple, again)) == sorted(map(tuple, before))


@ways
def test_what_was_not_answered_takes_no_answer_of_others(
    session: Any, answers: Callable[[Any], Any], cut: Callable[..., None], way: Any, tmp_path: Path
) -> None:
    asked, mark = tmp_path / "asked", tmp_path / "mended"

    def ask(text: str, n: int) -> int:
        with asked.open("a") as file:
            fails = file.tell() >= FAILS_AFTER and not mark.exists()
            file.write("f" if fails else "x")
        if fails:
            raise ValueError("not now")
        return random.SystemRandom().randrange(2**31)

    rows = causal("int", per="row")(ask)
    with session.epoch("failed"):
        cut(*way[0])
        with pytest.raises(Exception, match="not now"):
            answers(rows)
        mark.touch()
        cut(*way[1])
        given = [row.answer for row in answers(rows)]
    assert len(set(given)) == len(given) == 240
    # What was answered then is not asked again, but for what a task had under way that was killed.
    assert 240 <= asked.read_text().count("x") < 240 + FAILS_AFTER // 2


def random_number(calls: Any, record: Any = "result") -> Callable[[Any], Any]:
    def ask(text: str) -> int:
        def drawn() -> int:
            calls.add(1)
            return random.SystemRandom().randrange(2**31)

        return clonos.call(drawn) if record == "services" else drawn()

    return causal("int", per="row", record=record)(ask)


@pytest.mark.parametrize("coalesced", [1, 2])
def test_behind_a_shuffle_rows_that_an_action_left_out_are_asked_by_the_next(
    session: Any, spark: Any, cut: Callable[..., None], coalesced: int
) -> None:
    calls = spark.sparkContext.accumulator(0)
    rows = random_number(calls)
    cut(MERGE, "false")
    left = spark.createDataFrame([(n, f"text {n % 60}") for n in range(120)], "id int, text string")
    right = spark.createDataFrame([(n, n * 7) for n in range(120)], "id int, n int")
    joined = left.repartition(4).join(right, "id").select("id", rows("text").alias("answer"))
    with session.epoch("some first"):
        some = {row.id: row.answer for row in joined.take(25)}
        answers = {row.id: row.answer for row in joined.coalesce(coalesced).collect()}
    assert len(answers) == len(set(answers.values())) == 120
    assert calls.value <= 120
    assert {row: answers[row] for row in some} == some


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", ["row", "services", "drawn"])
def test_a_task_of_several_partitions_goes_on_where_one_that_took_a_few_rows_stopped(
    session: Any, spark: Any, kind: str, restarts: bool
) -> None:
    calls = spark.sparkContext.accumulator(0)

    def answered() -> Any:
        numbers = spark.range(0, 120, 1, 4).selectExpr("id", "concat('text ', id % 10) as text")
        if kind == "drawn":
            return numbers.withColumn("answer", functions.rand()).coalesce(1)
        rows = random_number(calls, "services" if kind == "services" else "result")
        return numbers.withColumn("answer", rows("text")).coalesce(1)

    def few() -> dict[int, Any]:
        return {row.id: row.answer for row in answered().take(5)}

    def whole() -> dict[int, Any]:
        return {row.id: row.answer for row in answered().collect()}

    if restarts:
        some, found = again(session, few, whole)
    else:
        with session.epoch("on one frame"):
            some, found = few(), whole()
    assert len(found) == 120
    assert {row: found[row] for row in some} == some
    # Of a worker that is not read to its end Spark does not hear how often it was asked.
    assert calls.value <= 120


def test_one_answer_is_never_given_to_two_rows_of_equal_arguments(session: Any, spark: Any) -> None:
    calls = spark.sparkContext.accumulator(0)
    rows = random_number(calls)
    twice = [(n, f"text {n % 60}") for n in range(120)]
    cut_in_6 = spark.sparkContext.parallelize(twice, 6).toDF("id int, text string")
    answered = cut_in_6.select("id", rows("text").alias("answer"))
    with session.epoch("shared"):
        answered.take(25)
        assert calls.value < 120
        # Which of two equal rows was asked cannot be seen where no shuffle is before them.
        with pytest.raises(Exception, match="row_key="):
            answered.coalesce(2).collect()


def test_nor_where_a_task_died_that_had_taken_it(session: Any, spark: Any, tmp_path: Path) -> None:
    taken, died = tmp_path / "taken", tmp_path / "died"

    @causal(per="row")
    @pandas_udf(LongType())
    def ask(texts: pd.Series) -> pd.Series:
        # That has the rows whose twins were answered, and has copied two batches of answers by now.
        is_second = TaskContext.get().partitionId() == 1  # type: ignore[union-attr]
        if is_second and taken.exists() and not died.exists():
            died.touch()
            raise OSError("in the middle of it")
        return texts.map(lambda _: random.SystemRandom().randrange(2**31))

    def answered(tasks: int) -> Any:
        rows = spark.range(0, 120, 1, tasks)
        return rows.select("id", ask((rows.id % 60).cast("string")).alias("answer"))

    records = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(records, 10)
    try:
        with contextlib.suppress(LookupError), session.epoch("shared by one that died"):
            assert len(answered(6).take(20)) == 20
            taken.touch()
            raise LookupError
        with (
            pytest.raises(Exception, match="row_key="),
            session.epoch("shared by one that died"),
        ):
            answered(2).collect()
        assert died.exists()
    finally:
        spark.conf.unset(records)


def test_rows_with_arguments_of_their_own_are_found_where_others_were_left_out(
    session: Any, spark: Any
) -> None:
    calls = spark.sparkContext.accumulator(0)
    rows = random_number(calls)
    answered = spark.range(0, 120, 1, 6).select("id", rows("id").alias("answer"))
    with session.epoch("of their own"):
        some = {row.id: row.answer for row in answered.take(25)}
        answers = {row.id: row.answer for row in answered.coalesce(2).collect()}
        both = answered.union(answered).collect()
    assert len(set(answers.values())) == 120
    assert calls.value <= 120
    assert {row: answers[row] for row in some} == some
    # Of a run that came to its end a row may be asked for as often as one likes.
    assert sorted(map(tuple, both)) == sorted(list(answers.items()) * 2)


def test_a_query_with_another_number_in_it_finds_its_rows_behind_a_shuffle(
    session: Any, spark: Any, cut: Callable[..., None]
) -> None:
    calls = spark.sparkContext.accumulator(0)
    rows = random_number(calls)
    cut(MERGE, "false")
    left = spark.createDataFrame([(n, f"text {n}") for n in range(120)], "id int, text string")
    right = spark.createDataFrame([(n, n * 7) for n in range(120)], "id int, n int")

    def answers(number: int) -> dict[int, int]:
        # As a clock's, which each run of a program reads anew.
        numbered = left.withColumn("at", left.id + number).repartition(4).join(right, "id")
        found = numbered.select("id", "at", rows("text").alias("answer")).collect()
        return {row.id: row.answer for row in found}

    before = {}
    with contextlib.suppress(LookupError), session.epoch("numbered"):
        before = answers(1)
        raise LookupError
    with session.epoch("numbered"):
        again = answers(2)
    assert calls.value == len(before) == 120
    assert again == before


def test_two_actions_at_a_time_that_cut_rows_otherwise_see_the_same_answers(
    session: Any, spark: Any
) -> None:
    def ask(row: int) -> int:
        # The second partition is at work when the second action begins, which has all in one.
        time.sleep(0.05 if row >= 50 else 0)
        return random.SystemRandom().randrange(2**31)

    answer = causal("long", uid="beside", per="row")(ask)
    frame = spark.range(0, 100, 1, 2).select("id", answer("id").alias("answer"))
    seen: list[dict[int, int]] = []

    def act(partitions: int) -> None:
        seen.append({row.id: row.answer for row in frame.coalesce(partitions).collect()})

    with session.epoch("two actions"):
        threads = [InheritableThread(target=act, args=(partitions,)) for partitions in (2, 1)]
        for thread in threads:
            thread.start()
            time.sleep(0.2)
        for thread in threads:
            thread.join()
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert len(seen[0]) == 100
