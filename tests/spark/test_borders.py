"""Epochs that are run again with as many tasks and other borders between them."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cuts import unseen
from epochs import Failed, again, drawn, fail
from pyspark import cloudpickle
from pyspark.errors import PySparkException

import clonos
from clonos.errors import ReplayDivergence

ROWS = 40
pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def answers(df: Any) -> dict[Any, Any]:
    return dict(map(tuple, df.select("id", drawn("id")).collect()))


def test_files_that_are_packed_otherwise_have_their_answers(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = str(tmp_path / "numbers")
    spark.range(0, ROWS, 1, 4).write.parquet(folder)
    sizes = [file.stat().st_size for file in Path(folder).glob("*.parquet")]
    packing = ("maxPartitionBytes", "openCostInBytes", "minPartitionNum")
    names = [f"spark.sql.files.{name}" for name in packing]

    def packed(files: int) -> Any:
        bytes_max = max(sizes) * files + files
        for name, value in zip(names, (bytes_max, 1, 1), strict=True):
            spark.conf.set(name, str(value))
        numbers = spark.read.parquet(folder)
        assert numbers.rdd.getNumPartitions() == 2
        return answers(numbers)

    try:
        first, second = again(session, lambda: packed(2), lambda: packed(3))
    finally:
        for name in names:
            spark.conf.unset(name)
    assert second == first


def test_a_file_more_leaves_the_others_their_answers(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "numbers"
    spark.range(0, ROWS, 1, 2).write.parquet(str(folder))

    def read() -> Any:
        return answers(spark.read.parquet(str(folder)))

    def with_more() -> Any:
        spark.range(ROWS, ROWS + 5, 1, 1).write.mode("append").parquet(str(folder))
        return read()

    first, second = again(session, read, with_more)
    assert {number: second[number] for number in first} == first
    assert len(second) == ROWS + 5


@pytest.mark.parametrize(("before", "after"), [(30, 10), (10, 30)])
def test_rows_that_moved_unseen_are_not_asked_twice_in_silence(
    spark: Any, session: Any, before: int, after: int
) -> None:
    with suppress(Failed), session.epoch("cut"):
        answers(unseen(spark, before, ROWS))
        fail()
    for _ in range(2):
        refused = pytest.raises(PySparkException, match=rf"{ReplayDivergence.__name__}.*commit")
        with refused, session.epoch("cut"):
            answers(unseen(spark, after, ROWS))
    session.commit("batch", "cut")
    with session.epoch("cut"):
        assert len(answers(unseen(spark, after, ROWS))) == ROWS


@pytest.mark.parametrize("uses_before", [0, 1])
def test_rows_that_moved_are_refused_after_a_restart_too(
    plain_spark: Any, tmp_path: Path, uses_before: int
) -> None:
    refused = pytest.raises(PySparkException, match=rf"{ReplayDivergence.__name__}.*commit")
    with clonos.attach(plain_spark, checkpoint_dir=tmp_path) as session:
        for _ in range(uses_before):
            with session.epoch("cut"):
                answers(unseen(plain_spark, 20, ROWS))
        with suppress(Failed), session.epoch("cut"):
            answers(unseen(plain_spark, 30, ROWS))
            fail()
        with refused, session.epoch("cut"):
            answers(unseen(plain_spark, 10, ROWS))
    for _ in range(2):
        with clonos.attach(plain_spark, checkpoint_dir=tmp_path) as session:
            with refused, session.epoch("cut"):
                answers(unseen(plain_spark, 10, ROWS))
    with clonos.attach(plain_spark, checkpoint_dir=tmp_path) as session:
        session.commit("batch", "cut")
        with session.epoch("cut"):
            assert len(answers(unseen(plain_spark, 10, ROWS))) == ROWS
    assert not list(tmp_path.rglob("*.seg"))


def test_another_question_of_the_same_epoch_is_no_move(spark: Any, session: Any) -> None:
    """Two actions over other rows, and a failure between them."""
    numbers, column = spark.range(0, ROWS, 1, 2), drawn("id")

    def ask(where: str) -> Any:
        return dict(map(tuple, numbers.where(where).select("id", column).collect()))

    def first() -> Any:
        return ask("id < 10 or id > 25")

    def both() -> Any:
        return first(), ask("id >= 5 and id < 30")

    recorded, (one, other) = again(session, first, both)
    assert one == recorded
    assert all(other[number] == one[number] for number in other.keys() & one.keys())


@pytest.mark.parametrize("move", ["repartition", "coalesce"])
def test_a_range_that_is_read_by_more_tasks_has_its_answers_where_it_is_cut_again(
    spark: Any, session: Any, move: str
) -> None:
    def cut_again(tasks: int) -> Any:
        return answers(getattr(spark.range(0, ROWS, 1, tasks), move)(2))

    first, second = again(session, lambda: cut_again(3), lambda: cut_again(4))
    assert second == first
