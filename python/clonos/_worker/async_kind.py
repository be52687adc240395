"""Coroutine functions: several rows of a batch are under way at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any

import pyarrow as pa

from clonos._keys import RowsKeys
from clonos._services import Scope, current
from clonos._worker.answers import Answers
from clonos._worker.kinds import Columns, Key
from clonos._worker.rows import RowCodec

# The row that a call is for: what the call starts on its own knows it, too.
_row: ContextVar[list[int]] = ContextVar("clonos_row")

# When a call raises, no other is begun; those under way, which are paid for, may take this long.
FINISH_SECONDS = 10.0


class AsyncKind:
    """A coroutine function: up to `concurrency` rows of a batch are under way at a time.

    When one raises, no other is begun, and those under way are given `FINISH_SECONDS` to come to
    their end: what they answer is kept. Then the first exception goes on.

    With `tells_rows`, what a call has started and left behind still knows the row it is for. It
    costs as much as the call of a quick function, and only idempotency keys need it.
    """

    takes_batches = False

    def __init__(
        self,
        fn: Callable[..., Coroutine[Any, Any, Any]],
        codec: RowCodec,
        arguments: int,
        concurrency: int,
        *,
        loop: asyncio.Runner | None = None,
        tells_rows: bool = True,
    ) -> None:
        self._fn = fn
        self._codec = codec
        self._arguments = arguments
        self._concurrency = concurrency
        self._tells_rows = tells_rows
        # One loop for the whole task: clients that the function keeps stay bound to it. What
        # ``setup=`` made is kept for longer, and its loop with it.
        self._runner = loop or asyncio.Runner()
        self._is_own = loop is None

    def run(self, columns: Columns, key: Key, answers: Answers | None = None) -> pa.Array:
        """Results for all rows of `columns`; `key(i, n)` is the key of row `i`'s call `n`."""
        answers = answers or Answers()
        answers.begin(self._codec.to_arrow)
        lists = self._codec.to_lists(columns[: self._arguments])
        count = len(columns[0])
        rows = zip(*lists, strict=True) if lists else itertools.repeat((), count)
        self._runner.run(self._all(rows, min(self._concurrency, count), key, answers))
        return answers.array()

    async def _all(
        self, rows: Iterable[tuple[Any, ...]], workers: int, key: Key, answers: Answers
    ) -> None:
        fn, each, values, tells_rows = self._fn, answers.each, answers.values, self._tells_rows
        # One at a time, they come in the order of rows.
        places: list[int] | None = [] if workers > 1 else None
        answers.places = places
        todo = enumerate(rows)
        failures: list[Exception] = []
        over: list[bool] = []
        # One for all rows: making one for each costs as much as the call of a quick function.
        scope = Scope(None, RowsKeys(lambda: _row.get()[0], key))

        async def work() -> None:
            current.set(scope)
            at = [0]
            _row.set(at)
            try:
                for index, row in todo:
                    if tells_rows:
                        _row.set([index])
                    else:
                        at[0] = index
                    value = await fn(*row)
                    if over:
                        # It was cancelled: what the function falls back to then is no answer.
                        return
                    if places is not None:
                        places.append(index)
                    values.append(value)
                    if each:
                        answers.save()
                    if failures:
                        return
            except Exception as error:
                failures.append(error)

        await _finish([asyncio.ensure_future(work()) for _ in range(workers)], failures, over)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Close the loop, unless it was lent."""
        if self._is_own:
            self._runner.close()


async def _finish(
    tasks: list[asyncio.Future[None]], failures: list[Exception], over: list[bool]
) -> None:
    """Wait for all tasks or, once something has failed, for `FINISH_SECONDS`; then it is `over`."""
    pending = set(tasks)
    try:
        while pending and not failures:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        if pending:
            _, pending = await asyncio.wait(pending, timeout=FINISH_SECONDS)
    finally:
        over.append(True)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
