"""``toLocalIterator``, whose execution is over when its tasks run, is a query like any other."""

from __future__ import annotations

import random
from typing import Any

import pytest

from clonos import causal


@pytest.fixture
def query(spark: Any) -> Any:
    """Makes the query, again each time; its `calls` are counted."""
    calls = spark.sparkContext.accumulator(0)

    def draw(_number: int) -> float:
        calls.add(1)
        return random.SystemRandom().random()

    drawn = causal("double", per="row")(draw)

    def make(shuffled: bool = False) -> Any:
        numbers = spark.range(0, 40, 1, 2)
        if shuffled:
            numbers = numbers.repartition(3, "id")
        return numbers.select("id", drawn("id").alias("v"))

    make.calls = calls  # type: ignore[attr-defined]
    return make


@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
@pytest.mark.parametrize("described", [False, True], ids=["by Spark", "by its user"])
def test_one_that_is_made_again_gets_what_is_recorded(
    session: Any, spark: Any, query: Any, shuffled: bool, described: bool
) -> None:
    if described:
        spark.sparkContext.setJobDescription("scores")
    try:
        with session.epoch(f"iterated {shuffled} {described}"):
            first = sorted(query(shuffled).toLocalIterator())
            second = sorted(query(shuffled).toLocalIterator())
            collected = sorted(query(shuffled).collect())
            prefetched = sorted(query(shuffled).toLocalIterator(prefetchPartitions=True))
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", None)
    assert first == second == collected == prefetched
    assert query.calls.value == len(first) == 40


def test_one_that_was_planned_before_is_found_too(session: Any, query: Any) -> None:
    with session.epoch("planned before"):
        collected = sorted(query().collect())
        planned = query()
        planned.explain("formatted")
        assert sorted(planned.toLocalIterator()) == collected
    assert query.calls.value == 40


def test_two_that_are_taken_in_turns_have_one_answer_for_a_row(session: Any, query: Any) -> None:
    with session.epoch("in turns"):
        numbers, others = query().toLocalIterator(), query().where("id >= 10").toLocalIterator()
        rows = [row for both in zip(numbers, others, strict=False) for row in both]
        assert len(set(rows)) == 40, "each row has one answer, on both sides"
        assert set(query().toLocalIterator()) == set(rows)
    assert query.calls.value == 40
