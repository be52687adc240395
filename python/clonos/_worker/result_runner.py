"""``record="result"``: the function is the causal service, and its results are recorded.

One Arrow batch is in the making while the one before it becomes stable on other agents: the price
of replication hides behind the user's function.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from clonos import _core
from clonos._services import Scope, current
from clonos._worker.answers import Answers, Watch
from clonos._worker.kinds import Batches, Columns, Kind, arrow_of, one_or_tuple
from clonos._worker.results import check_ahead, wrong_length

Step = Callable[[Columns], pa.Array]


class ResultRunner:
    """Runs one attempt of a task whose results are recorded.

    Parameters
    ----------
    task : _core.ResultTask
        The opened task.
    arguments : int
        How many leading columns are passed to the function; the rest identify the row.
    marks_at : int, optional
        Which column is a mark of the row, if there is one; see `clonos._driver.row_marks`.
    flush : {"auto", "batch", "call"}
        How much becomes stable together.
    one_at_a_time : bool
        Whether the next call waits until an answer is stable, under ``flush="call"``.
    key : callable, optional
        In place of the task's own, `_core.ResultTask.key`.
    """

    def __init__(
        self,
        task: _core.ResultTask,
        arguments: int,
        marks_at: int | None = None,
        flush: str = "batch",
        one_at_a_time: bool = True,
        *,
        key: Callable[[_core.Plan, int | None, int], str] | None = None,
    ) -> None:
        self._task = task
        self._key = key
        self._arguments = arguments
        self._marks_at = marks_at
        self._flush = flush
        self._settle = task.settle if flush == "call" and one_at_a_time else None
        self._answers: Answers | None = None
        # Rows that an iterator function was given, and that it returned.
        self._given = 0
        self._returned = 0

    def run(self, batches: Batches, kind: Kind) -> Iterator[pa.Array]:
        """Outputs of a function that is called batch by batch."""

        def outputs() -> Iterator[pa.Array]:
            for columns in batches:
                if self._flush == "call" and kind.takes_batches:
                    yield self._by_calls(columns, kind)
                else:
                    yield self._one(columns, kind)

        try:
            yield from self.pipelined(outputs())
        finally:
            kind.close()

    def _one(self, columns: Columns, kind: Kind) -> pa.Array:
        task = self._task
        plan = self._offer(columns)
        live = None
        # An empty batch goes through the function for the type of its result.
        if plan.live_count or not plan.rows:
            live = self._called(plan, self._live_columns(plan, columns), kind)
        return task.complete(plan, live)

    def _called(self, plan: _core.Plan, columns: Columns, kind: Kind) -> pa.Array:
        """Call the function; what it answered before an exception is kept."""
        task = self._task
        keep = functools.partial(task.keep, plan)
        answers = Answers(keep, each=self._flush == "call", settle=self._settle)
        self._answers = answers
        try:
            return kind.run(columns, functools.partial(self._key or task.key, plan), answers)
        except BaseException:
            answers.rescue()
            raise
        finally:
            self._answers = None

    def _save(self) -> None:
        if (answers := self._answers) is not None:
            answers.save()

    def _by_calls(self, columns: Columns, kind: Kind) -> pa.Array:
        """Call a function of batches row by row, and wait until each answer is stable."""
        outputs = []
        for row in range(len(columns[0])):
            part = [column.slice(row, 1) for column in columns]
            outputs.append(self._one(part, kind))
            self._task.settle(self._task.publish())
        if not outputs:
            return self._one(columns, kind)
        return pa.concat_arrays(outputs)

    def _offer(self, columns: Columns) -> _core.Plan:
        arrays, at = arrow_of(columns), self._marks_at
        if at is None or len(arrays) <= at:
            return self._task.offer(arrays)
        return self._task.offer(arrays[:at], arrays[at])

    def _live_columns(self, plan: _core.Plan, columns: Columns) -> Columns:
        columns = columns[: self._arguments] or columns[:1]
        rows = plan.live
        return columns if rows is None else [column.take(rows) for column in columns]

    def run_iterator(
        self, batches: Batches, fn: Callable[[Iterator[Any]], Iterator[Any]], shape: Step
    ) -> Iterator[pa.Array]:
        """Outputs of an iterator function, whose batches need not match those it was given.

        `shape` makes an array of what the function yields. The function is started at the first
        row that has no recorded value; if there is none, it is not called at all.
        """
        yield from self.pipelined(self._iterator_outputs(batches, fn, shape))

    def _iterator_outputs(
        self, batches: Batches, fn: Callable[[Iterator[Any]], Iterator[Any]], shape: Step
    ) -> Iterator[pa.Array]:
        task = self._task
        waiting: deque[_core.Plan] = deque()
        for columns in batches:
            plan = self._offer(columns)
            if not plan.live_count:
                yield task.complete(plan, None)
                continue
            waiting.append(plan)
            self._given += plan.live_count
            feed = self._feed(self._live_columns(plan, columns), batches, waiting)
            yield from self._aligned(map(shape, fn(feed)), waiting)
            break
        while waiting and not waiting[0].live_count:
            yield task.complete(waiting.popleft(), None)
        if waiting:
            raise wrong_length(self._returned, self._given)

    def _feed(self, first: Columns, batches: Batches, waiting: deque[_core.Plan]) -> Iterator[Any]:
        yield one_or_tuple(first)
        for columns in batches:
            plan = self._offer(columns)
            waiting.append(plan)
            if plan.live_count:
                self._given += plan.live_count
                yield one_or_tuple(self._live_columns(plan, columns))

    def _aligned(
        self, results: Iterator[pa.Array], waiting: deque[_core.Plan]
    ) -> Iterator[pa.Array]:
        """Cut the function's results to the batches they answer."""
        ready: list[pa.Array] = []
        rows = 0
        try:
            for result in results:
                self._returned += len(result)
                check_ahead(self._returned, self._given)
                ready.append(result)
                rows += len(result)
                while waiting and rows >= waiting[0].live_count:
                    plan = waiting.popleft()
                    live, ready = _split(ready, plan.live_count)
                    rows -= plan.live_count
                    yield self._task.complete(plan, live)
        except BaseException:
            # A batch of which only some rows were answered: these are kept.
            with contextlib.suppress(Exception):
                if waiting and rows:
                    self._task.keep(waiting[0], list(range(rows)), pa.concat_arrays(ready))
            raise

    def pipelined(self, outputs: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Publish each output's determinants, and hand it on once they are stable."""
        task = self._task
        token = current.set(Scope(None))
        watch = Watch(self._save) if self._flush == "auto" else None
        try:
            held: tuple[int, pa.Array] | None = None
            for output in outputs:
                # Stable with this mark is all that led to the output, also if it recorded nothing.
                before, held = held, (task.publish(), output)
                if before is not None:
                    task.settle(before[0])
                    yield before[1]
            task.settle()
            # Before the last batch leaves: what was recorded and did not come back is an error.
            task.finish()
            if held is not None:
                yield held[1]
        finally:
            if watch is not None:
                watch.stop()
            task.close()
            reset(token)


def _split(arrays: list[pa.Array], rows: int) -> tuple[pa.Array | None, list[pa.Array]]:
    if not rows:
        return None, arrays
    whole = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    rest = whole.slice(rows)
    return whole.slice(0, rows), [rest] if len(rest) else []


def reset(token: Any) -> None:
    """End a scope."""
    # A generator that is thrown away is closed in another context; its scope goes with it.
    with contextlib.suppress(ValueError):
        current.reset(token)
