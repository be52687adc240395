"""One answer per distinct argument: a task beside a real agent, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType

from clonos import _core
from clonos._worker.answers import FLUSH_SECONDS
from clonos._worker.kinds import RowKind
from clonos._worker.rows import RowCodec
from clonos._worker.value_runner import ValueRunner

BATCHES = [[1, 2], [2, 3], [], [3, 4]]
# Questions enough for a batch to be worked on in parts.
MANY = 5_000
# How long the agent keeps a request of somebody who has nothing else to do.
WAIT_SECONDS = 0.5


def open_value(config: _core.SessionConfig) -> _core.ValueTask:
    return _core.ValueTask.open(
        _core.Client.connect(config, config.driver_socket),
        query="q",
        epoch="e",
        operator="f",
        named=True,
        code=1,
        shape="s",
        python="3",
        label="f",
        allow_code_change=False,
        app=1,
        in_parts=True,
    )


def runner(task: _core.ValueTask, fn: Callable[[int], int]) -> ValueRunner:
    return ValueRunner(task, RowKind(fn, RowCodec(LongType()), 1), 100)


def column(values: list[int]) -> tuple[pa.Array]:
    return (pa.array(values, pa.int64()),)


def results(task: _core.ValueTask, fn: Callable[[int], int], batches: Any = None) -> list[Any]:
    given = map(column, BATCHES) if batches is None else batches
    return [output.to_pylist() for output in runner(task, fn).run(iter(given))]


def test_each_argument_is_asked_once_however_often_it_comes(config: Any) -> None:
    asked: list[int] = []
    outputs = results(open_value(config), lambda x: asked.append(x) or 10 * x)
    assert outputs == [[10, 20], [20, 30], [], [30, 40]]
    assert sorted(asked) == [1, 2, 3, 4]
    assert results(open_value(config), lambda x: -x) == outputs


def test_whose_answer_comes_late_uses_the_first(config: Any) -> None:
    """The agent gives a task's duties to another, which answers: before the task's own answer."""
    task = open_value(config)
    overtaken: list[int] = []

    def slow(x: int) -> int:
        if x in (1, 3) and x not in overtaken:
            overtaken.append(x)
            # As after a silence that was too long.
            task.close()
            other = open_value(config)
            other.offer([pa.array([x], pa.int64())])
            assert other.ask(9).to_pylist() == [0]
            other.answer(pa.array([1000 * x], pa.int64()))
        return 10 * x

    outputs = results(task, slow)
    assert outputs == [[1000, 20], [20, 3000], [], [3000, 40]]
    assert overtaken == [1, 3]
    assert results(open_value(config), lambda x: -x) == outputs


def test_what_is_asked_ahead_is_for_others_if_the_values_wait_to_be_used(config: Any) -> None:
    """Whoever takes a task's values may be slow: others wait for its duties a second or two."""
    asked: list[int] = []
    outputs = runner(open_value(config), lambda x: asked.append(x) or 10 * x)
    values = outputs.run(map(column, BATCHES))
    begun = time.monotonic()
    assert next(values).to_pylist() == [10, 20]
    other = open_value(config)
    other.offer([pa.array([1, 2, 3], pa.int64())])
    # The first two are answered; the third is this task's until it has waited for too long.
    while not (rows := other.ask(9).to_pylist()):
        pass
    assert rows == [2]
    assert time.monotonic() - begun >= FLUSH_SECONDS
    other.answer(pa.array([333], pa.int64()))
    assert [output.to_pylist() for output in values] == [[20, 333], [], [333, 40]]
    assert sorted(asked) == [1, 2, 4]


def test_what_was_asked_ahead_and_begun_does_not_lapse(config: Any) -> None:
    task = open_value(config)
    task.offer([pa.array([1, 2], pa.int64())])
    task.ask_ahead(9)
    assert not task.lapse(60.0)
    assert task.ask(9).to_pylist() == [0, 1]
    assert not task.lapse(0.0)
    task.answer(pa.array([10, 20], pa.int64()))
    task.offer([pa.array([3], pa.int64())])
    task.ask_ahead(9)
    assert task.lapse(0.0)
    other = open_value(config)
    other.offer([pa.array([3], pa.int64())])
    assert other.ask(9).to_pylist() == [0]
    assert task.ask(9).to_pylist() == []
    other.answer(pa.array([30], pa.int64()))
    assert task.ask(9).to_pylist() == []
    assert task.ask(9) is None
    assert task.complete().to_pylist() == [30]


def test_a_batch_that_is_offered_again_keeps_what_was_asked_ahead(config: Any) -> None:
    task = open_value(config)
    task.offer([pa.array([1], pa.int64())])
    task.ask_ahead(9)
    task.offer([pa.array([2], pa.int64())])
    assert task.ask(9).to_pylist() == [0]
    task.offer([pa.array([1], pa.int64())])
    assert task.ask(9).to_pylist() == [0]


def test_answers_are_stable_before_their_values_are_handed_on(config: Any) -> None:
    def batches() -> Iterator[Any]:
        yield column([1, 2])
        raise ConnectionError("what is below has failed")

    with pytest.raises(ConnectionError):
        results(open_value(config), lambda x: 10 * x, batches())
    assert results(open_value(config), lambda x: -x, [column([1, 2])]) == [[10, 20]]


def calls_of(sizes: list[int], fn: Callable[[int], Any], kind: Any = None) -> Any:
    """A kind that says of how many rows it was asked at a time."""
    kind = RowKind(fn, RowCodec(LongType()), 1) if kind is None else kind
    run = kind.run

    def counted(live: Any, *rest: Any) -> Any:
        sizes.append(len(live[0]))
        return run(live, *rest)

    kind.run = counted
    return kind


def test_a_large_batch_is_worked_on_in_parts(config: Any) -> None:
    sizes: list[int] = []
    kind = calls_of(sizes, lambda x: 10 * x)
    batches = [column(list(range(at, at + MANY))) for at in (0, MANY // 2, 2 * MANY)]
    outputs = ValueRunner(open_value(config), kind, MANY).run(iter(batches))
    for given, output in zip(batches, outputs, strict=True):
        assert output.to_pylist() == [10 * x.as_py() for x in given[0]]
    # Of the second batch half is known.
    assert sizes == [MANY // 2, MANY // 2, MANY // 4, MANY // 4, MANY // 2, MANY // 2]


def test_parts_that_another_has_answered_meanwhile_are_not_used(config: Any) -> None:
    """The agent gives both parts to another, which answers some of each before the task does."""
    task = open_value(config)
    theirs = [0, 1, MANY - 1]

    def slow(x: int) -> int:
        if x == 0:
            task.close()
            other = open_value(config)
            other.offer([pa.array(theirs, pa.int64())])
            assert len(other.ask(9)) == len(theirs)
            other.answer(pa.array([-1] * len(theirs), pa.int64()))
        return 10 * x

    kind = RowKind(slow, RowCodec(LongType()), 1)
    batches = [column(list(range(MANY))), column([MANY])]
    first, second = ValueRunner(task, kind, MANY).run(iter(batches))
    expected = [-1 if x in theirs else 10 * x for x in range(MANY)]
    assert first.to_pylist() == expected
    assert second.to_pylist() == [10 * MANY]
    assert results(open_value(config), lambda x: -x, [column(list(range(MANY)))]) == [expected]


def test_an_exception_in_the_second_part_keeps_what_was_answered(config: Any) -> None:
    asked: list[int] = []

    def fails(x: int) -> int:
        if x == MANY - 10:
            raise ConnectionError("the service has gone")
        asked.append(x)
        return 10 * x

    kind = RowKind(fails, RowCodec(LongType()), 1)
    with pytest.raises(ConnectionError):
        list(ValueRunner(open_value(config), kind, MANY).run(iter([column(list(range(MANY)))])))
    again: list[int] = []
    outputs = results(
        open_value(config), lambda x: again.append(x) or 10 * x, [column(list(range(MANY)))]
    )
    assert outputs == [[10 * x for x in range(MANY)]]
    assert sorted(asked + again) == list(range(MANY))
    assert len(again) == 10


def test_tasks_that_share_large_batches_share_the_work(config: Any) -> None:
    asked: list[int] = []
    batches = [list(range(at, at + MANY)) for at in range(0, 6 * MANY, MANY)]
    expected = [[10 * x for x in batch] for batch in batches]

    def work(order: int) -> list[Any]:
        task = open_value(config)
        given = map(column, batches[::order])
        kind = RowKind(lambda x: asked.append(x) or 10 * x, RowCodec(LongType()), 1)
        return [output.to_pylist() for output in ValueRunner(task, kind, MANY).run(given)]

    with ThreadPoolExecutor(4) as threads:
        for order, outputs in zip((1, -1, 1, -1), threads.map(work, (1, -1, 1, -1)), strict=True):
            assert outputs == expected[::order]
    assert sorted(asked) == list(range(6 * MANY))


def test_answers_larger_than_what_a_socket_takes_go_both_ways_at_once(config: Any) -> None:
    """Half of each part is answered, and read, while answers to the other half are sent."""

    def long_text(x: int) -> str:
        return f"{x} " * 1000

    def work(batch: list[int]) -> list[Any]:
        kind = RowKind(long_text, RowCodec(StringType()), 1)
        (output,) = ValueRunner(open_value(config), kind, MANY).run(iter([column(batch)]))
        return output.to_pylist()

    work(list(range(0, MANY, 2)))
    assert work(list(range(MANY))) == [long_text(x) for x in range(MANY)]


def test_who_has_nothing_to_answer_waits_for_others_and_does_not_ask_all_the_time(
    config: Any,
) -> None:
    # Of fewer questions than are asked in parts: all are taken when the first is answered for.
    others = [open_value(config) for _ in range(3)]
    for number, other in enumerate(others):
        other.offer([pa.array(range(number, MANY, 3), pa.int64())])
        assert len(other.ask(MANY)) == len(range(number, MANY, 3))
    task = open_value(config)
    task.offer([pa.array(range(MANY), pa.int64())])
    begun = time.monotonic()
    # Of both parts it is told at once that they are taken, then when there is something to tell.
    assert [len(task.ask(MANY)) for _ in range(4)] == [0, 0, 0, 0]
    assert time.monotonic() - begun > 2 * WAIT_SECONDS * 0.9
