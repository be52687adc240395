"""Rows with equal arguments keep their answers when Spark cuts them into other partitions."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clonos import causal

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
