"""RDDs of `clonos.map_partitions`: each is an epoch, as long as anything is made of it."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from pyspark import InheritableThread, StorageLevel, cloudpickle

import clonos
from clonos import errors, testing
from clonos._driver.session import EXECUTION_POLL_SECONDS

ROWS = 60
PARTS = 3
pytestmark = pytest.mark.timeout(240)
# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def stamp(part: Iterable[Any]) -> Iterator[tuple[Any, float]]:
    return ((n, clonos.random.random()) for n in part)


def alike(spark: Any) -> Any:
    """An RDD whose partitions have the same elements, so that only their answers differ."""
    ones = spark.sparkContext.parallelize([1] * ROWS, PARTS)
    return clonos.map_partitions(ones, stamp)


def as_rows(drawn: Any, _spark: Any) -> list[Any]:
    frame = drawn.toDF(["n", "drawn"])
    return [tuple(row) for row in frame.union(frame).coalesce(2).collect()]


def beside_none(drawn: Any, spark: Any) -> list[Any]:
    return spark.sparkContext.parallelize([], 2).union(drawn).collect() * 2


def to_itself(drawn: Any, _spark: Any) -> list[Any]:
    pairs = drawn.zip(drawn).collect()
    return [one for one, _ in pairs] + [other for _, other in pairs]


def to_each(drawn: Any, spark: Any) -> list[Any]:
    # Computed once for each partition of the other one, twice in one task.
    pairs = spark.sparkContext.parallelize(range(4), 2).cartesian(drawn).collect()
    return [pair for number in (0, 3) for of, pair in pairs if of == number]


SHAPES: list[Callable[[Any, Any], list[Any]]] = [
    lambda drawn, _: drawn.union(drawn).collect(),
    lambda drawn, _: drawn.coalesce(2).collect() * 2,
    beside_none,
    as_rows,
    to_itself,
    to_each,
]


@pytest.mark.parametrize(
    "shape", SHAPES, ids=["union", "coalesce", "beside", "frame", "zip", "cartesian"]
)
def test_a_partition_has_its_answers_whichever_task_computes_it(
    session: Any, spark: Any, shape: Callable[[Any, Any], list[Any]]
) -> None:
    drawn = alike(spark)
    before = shape(drawn, spark)
    once = drawn.collect()
    assert len(set(once)) == ROWS
    assert sorted(before) == sorted(shape(drawn, spark)) == sorted(once * 2)


def test_in_an_epoch_two_rdds_of_one_function_have_answers_of_their_own(
    session: Any, spark: Any
) -> None:
    with session.epoch("two RDDs"):
        one, other = alike(spark), alike(spark)
        both = one.union(other).collect()
        assert len(set(both)) == 2 * ROWS
        assert other.collect() + one.collect() == both[ROWS:] + both[:ROWS]


def test_begun_again_rdds_of_one_function_have_their_answers_by_the_programs_order(
    session: Any, spark: Any
) -> None:
    def asks(first: int) -> list[list[Any]]:
        with session.epoch("begun again"):
            drawn = [alike(spark), alike(spark)]
            # Whichever of them is computed first, or alone.
            answers = {at: drawn[at].collect() for at in (first, 1 - first)}
            if len(shown) < 2:
                shown.append([answers[0], answers[1]])
                raise RuntimeError
            return [answers[0], answers[1]]

    shown: list[list[Any]] = []
    for first in (1, 0):
        with pytest.raises(RuntimeError):
            asks(first)
    assert asks(1) == shown[0] == shown[1]


def test_what_a_run_left_behind_takes_no_place_of_the_next_ones_rdds(
    session: Any, spark: Any
) -> None:
    go, made, refused = threading.Event(), threading.Event(), []

    def left_behind() -> None:
        go.wait(60)
        late = alike(spark)
        made.set()
        try:
            late.collect()
        except Exception as error:
            refused.append(str(error))

    thread = InheritableThread(target=left_behind)
    with contextlib.suppress(KeyError), session.epoch("left behind"):
        thread.start()
        first = alike(spark).collect()
        raise KeyError
    with session.epoch("left behind"):
        go.set()
        assert made.wait(60)
        assert alike(spark).collect() == first
        thread.join()
    assert "begun anew" in refused[0]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_in_an_epoch_an_rdd_is_not_cut_otherwise(session: Any, spark: Any, parts: int) -> None:
    def drawn(parts: int) -> list[Any]:
        numbers = spark.sparkContext.parallelize(range(4000), parts)
        return clonos.map_partitions(numbers, stamp).collect()

    def shows_and_fails() -> None:
        with session.epoch(name):
            shown.extend(drawn(1))
            raise RuntimeError

    name, shown = f"{parts} parts", list[Any]()
    with pytest.raises(RuntimeError):
        shows_and_fails()
    if parts == 1:
        with session.epoch(name):
            assert drawn(parts) == shown
        return
    # The first of them has the rows that the one partition had first.
    with pytest.raises(Exception) as refused, session.epoch(name):
        drawn(parts)
    assert isinstance(errors.find(refused.value), errors.ReplayDivergence)
    session.commit("batch", name)


def test_an_rdd_of_which_a_job_computed_less_is_the_same(session: Any, spark: Any) -> None:
    with session.epoch("taken"):
        drawn = alike(spark)
        taken = drawn.take(2) + drawn.coalesce(1).take(2)
        whole = drawn.collect()
        assert taken == whole[:2] * 2
        assert drawn.union(drawn).collect() == whole * 2


@pytest.mark.whole
def test_an_rdd_zipped_with_itself_says_what_to_do_where_that_has_no_end(
    session: Any, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def large(part: Iterable[Any]) -> Iterator[tuple[Any, float, str]]:
        return ((n, clonos.random.random(), f"{n:0500}") for n in part)

    numbers = spark.sparkContext.parallelize(range(100_000), 2)
    drawn = clonos.map_partitions(numbers, large)
    both = drawn.zip(drawn.map(lambda row: row))
    failed: list[Exception] = []

    def count() -> None:
        try:
            both.count()
        except Exception as error:
            failed.append(error)

    counting = threading.Thread(target=count)
    counting.start()
    testing.wait_until(lambda: any(".persist()" in m for m in caplog.messages), "advice", 90)
    spark.sparkContext.cancelAllJobs()
    counting.join()
    assert "cancelled" in str(failed[0])
    drawn.persist(StorageLevel.MEMORY_AND_DISK)
    assert drawn.zip(drawn).filter(lambda pair: pair[0] != pair[1]).count() == 0
    assert drawn.count() == 100_000
    drawn.unpersist()


def test_an_rdd_is_its_own_epoch(session: Any, spark: Any) -> None:
    numbers = spark.sparkContext.parallelize(range(ROWS), 3)
    stamped = clonos.map_partitions(
        numbers, lambda part: ((n, clonos.time_ns(), clonos.random.random()) for n in part)
    )
    assert stamped.collect() == stamped.collect()
    assert session.stats().totals.replayed


def test_the_epoch_of_an_rdd_ends_with_the_last_that_can_ask_for_it(
    session: Any, spark: Any
) -> None:
    def rdds() -> set[str]:
        return {str(of) for _, of in session._agent.live_epochs() if str(of).startswith("rdd-")}

    def collected() -> set[str]:
        gc.collect()
        spark.sparkContext._jvm.System.gc()
        time.sleep(2 * EXECUTION_POLL_SECONDS)
        return rdds() - before

    before = rdds()
    numbers = spark.sparkContext.parallelize(range(ROWS), 3)
    drawn = clonos.map_partitions(numbers, lambda part: ((n, clonos.random.random()) for n in part))
    shown = drawn.collect()
    frame = drawn.toDF(["n", "drawn"])
    assert len(rdds() - before) == 1
    # What the frame is made of only the JVM knows now.
    del drawn
    assert len(collected()) == 1
    for asked in (frame, frame.where("n >= 0"), frame.rdd):
        assert [tuple(row) for row in asked.collect()] == shown
    del frame, asked
    deadline = time.monotonic() + 30
    while collected() and time.monotonic() < deadline:
        pass
    assert not collected()
