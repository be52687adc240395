"""``record="services"``: the function runs again at replay, and only its services are recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from clonos import _core
from clonos._keys import TaskKeys
from clonos._services import Scope, current
from clonos._worker.answers import Watch
from clonos._worker.kinds import Batches, arrow_of, one_or_tuple, values_of
from clonos._worker.rows import RowCodec


class ServiceRunner:
    """Runs one attempt of a task whose services are recorded.

    Parameters
    ----------
    task : _core.ServiceTask
        The opened task.
    function : callable
        The user's function, which is run in steps.
    flush : {"auto", "batch", "call"}
        How much becomes stable together; under ``"call"`` each outcome is stable before the
        function sees it.
    """

    def __init__(
        self, task: _core.ServiceTask, function: Callable[..., Any] | None, flush: str = "auto"
    ) -> None:
        self._task = task
        self._flush = flush
        after = self._publish_now if flush == "call" else None
        self._scope = Scope(task, TaskKeys(task), after, function)

    def _publish_now(self) -> None:
        self._task.settle(self._task.publish())

    def run_rows(
        self,
        batches: Batches,
        fn: Callable[..., Any],
        codec: RowCodec,
        arguments: int,
    ) -> Iterator[pa.Array]:
        """Outputs of a plain function; its determinants are kept by row."""
        task = self._task

        def outputs() -> Iterator[pa.Array]:
            for columns in batches:
                task.begin_batch(arrow_of(columns))
                results = []
                rows: Iterator[tuple[Any, ...]]
                if arguments:
                    rows = zip(*codec.to_lists(columns[:arguments]), strict=True)
                else:
                    rows = iter([()] * len(columns[0]))
                for index, row in enumerate(rows):
                    task.begin_row(index)
                    results.append(fn(*row))
                task.end_row()
                yield codec.to_arrow(results)

        yield from self.pipelined(outputs())

    def run_batches(self, batches: Batches, fn: Callable[[list[Any]], Any]) -> Iterator[Any]:
        """Outputs of a function that is called with each batch's columns."""

        def outputs() -> Iterator[Any]:
            for columns in batches:
                self._task.input(arrow_of(columns))
                yield fn(values_of(columns))

        yield from self.pipelined(outputs())

    def run_iterator(
        self, batches: Batches, fn: Callable[[Iterator[Any]], Iterator[Any]], arguments: int
    ) -> Iterator[Any]:
        """Outputs of an iterator function, which is given the first `arguments` columns."""

        def feed() -> Iterator[Any]:
            for columns in batches:
                self._task.input(arrow_of(columns))
                yield one_or_tuple(columns[:arguments])

        yield from self.pipelined(iter(fn(feed())))

    def pipelined(self, outputs: Iterator[Any]) -> Iterator[Any]:
        """Publish what led to each output, and hand it on once that is stable.

        The scope is set around every step of the function and never while a consumer runs.
        """
        task = self._task
        watch = Watch(task.publish_answers) if self._flush == "auto" else None
        try:
            held: tuple[int, Any] | None = None
            for output in self.scoped(outputs):
                # Stable with this mark is all that led to the output, also if it recorded nothing.
                before, held = held, (task.publish(), output)
                if before is not None:
                    task.settle(before[0])
                    yield before[1]
            task.settle(task.publish())
            task.finish()
            if held is not None:
                yield held[1]
        except BaseException:
            # What was answered is kept; a call that failed, and nothing depends on, is asked again.
            with contextlib.suppress(Exception):
                task.publish_answers()
            raise
        finally:
            if watch is not None:
                watch.stop()
            task.close()

    def scoped(self, outputs: Iterator[Any]) -> Iterator[Any]:
        """Outputs, each computed with the causal services recorded."""
        while True:
            token = current.set(self._scope)
            try:
                output = next(outputs)
            except StopIteration:
                # What ends the task does so, whatever the function has made of it.
                self._scope.check()
                return
            finally:
                current.reset(token)
            self._scope.check()
            yield output
