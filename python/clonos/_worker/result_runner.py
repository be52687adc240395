"""``record="result"``: the function is the causal service, and its results are recorded.

One Arrow batch is in the making while the one before it becomes stable on other agents: the price
of replication hides behind the user's function.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from clonos import _core
from clonos._services import Scope, current
from clonos._worker.kinds import Batches, Columns, Kind, arrow_of, one_or_tuple

Step = Callable[[Columns], pa.Array]


class ResultRunner:
    """Runs one attempt of a task whose results are recorded.

    Parameters
    ----------
    task : _core.ResultTask
        The opened task.
    arguments : int
        How many leading columns are passed to the function; the rest identify the row.
    call_rows : int
        Rows published together: 0 for whole Arrow batches (``flush="batch"``).
    """

    def __init__(self, task: _core.ResultTask, arguments: int, call_rows: int = 0) -> None:
        self._task = task
        self._arguments = arguments
        self._call_rows = call_rows

    def run(self, batches: Batches, kind: Kind) -> Iterator[pa.Array]:
        """Outputs of a function that is called batch by batch."""

        def outputs() -> Iterator[pa.Array]:
            for columns in batches:
                if self._call_rows:
                    yield self._by_calls(columns, kind)
                else:
                    yield self._one(columns, kind)

        try:
            yield from self.pipelined(outputs())
        finally:
            kind.close()

    def _one(self, columns: Columns, kind: Kind) -> pa.Array:
        task = self._task
        plan = task.offer(arrow_of(columns))
        live = None
        # An empty batch goes through the function for the type of its result.
        if plan.live_count or not plan.rows:
            live = kind.run(self._live_columns(plan, columns), lambda row: task.key(plan, row))
        return task.complete(plan, live)

    def _by_calls(self, columns: Columns, kind: Kind) -> pa.Array:
        """Publish every call on its own: what is lost at a failure is one call."""
        outputs = []
        for start in range(0, len(columns[0]), self._call_rows):
            part = [column.slice(start, self._call_rows) for column in columns]
            outputs.append(self._one(part, kind))
            self._task.publish()
            self._task.settle(0)
        return pa.concat_arrays(outputs)

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
            plan = task.offer(arrow_of(columns))
            if not plan.live_count:
                yield task.complete(plan, None)
                continue
            waiting.append(plan)
            feed = self._feed(self._live_columns(plan, columns), batches, waiting)
            yield from self._aligned(map(shape, fn(feed)), waiting)
            break
        while waiting and not waiting[0].live_count:
            yield task.complete(waiting.popleft(), None)
        if waiting:
            message = "the iterator function ended before it returned a value for every row"
            raise ValueError(message)

    def _feed(self, first: Columns, batches: Batches, waiting: deque[_core.Plan]) -> Iterator[Any]:
        yield one_or_tuple(first)
        for columns in batches:
            plan = self._task.offer(arrow_of(columns))
            waiting.append(plan)
            if plan.live_count:
                yield one_or_tuple(self._live_columns(plan, columns))

    def _aligned(
        self, results: Iterator[pa.Array], waiting: deque[_core.Plan]
    ) -> Iterator[pa.Array]:
        """Cut the function's results to the batches they answer."""
        ready: list[pa.Array] = []
        rows = 0
        for result in results:
            ready.append(result)
            rows += len(result)
            while waiting and rows >= waiting[0].live_count:
                plan = waiting.popleft()
                live, ready = _split(ready, plan.live_count)
                rows -= plan.live_count
                yield self._task.complete(plan, live)
        if rows:
            message = f"the iterator function returned {rows} more rows than it was given"
            raise ValueError(message)

    def pipelined(self, outputs: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Publish each output's determinants, and hand it on once they are stable."""
        task = self._task
        token = current.set(Scope(None))
        try:
            held = None
            for output in outputs:
                task.publish()
                if held is not None:
                    task.settle(1)
                    yield held
                held = output
            task.settle(0)
            # Before the last batch leaves: what was recorded and did not come back is an error.
            task.finish()
            if held is not None:
                yield held
        finally:
            task.close()
            _reset(token)


def _split(arrays: list[pa.Array], rows: int) -> tuple[pa.Array | None, list[pa.Array]]:
    if not rows:
        return None, arrays
    whole = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    rest = whole.slice(rows)
    return whole.slice(0, rows), [rest] if len(rest) else []


def _reset(token: Any) -> None:
    # A generator that is thrown away is closed in another context; its scope goes with it.
    with contextlib.suppress(ValueError):
        current.reset(token)
