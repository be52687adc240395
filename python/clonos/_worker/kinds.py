"""The kinds of functions that can be causal, and how a batch of rows is handed to each."""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from clonos._services import Scope, current
from clonos._worker.results import conform
from clonos._worker.rows import RowCodec

if TYPE_CHECKING:
    from clonos._worker.pandas_codec import PandasCodec


class PandasColumn:
    """A column that pandas UDFs take as a series, made when it is asked for."""

    __slots__ = ("_codec", "_name", "arrow")

    def __init__(self, arrow: pa.Array, codec: PandasCodec, name: str) -> None:
        self.arrow = arrow
        self._codec = codec
        self._name = name

    def __len__(self) -> int:
        return len(self.arrow)

    @property
    def series(self) -> Any:
        """The column as pandas has it."""
        return self._codec.to_pandas(self.arrow, self._name)

    def take(self, rows: pa.Array) -> PandasColumn:
        """Return the rows at the given positions."""
        return PandasColumn(self.arrow.take(rows), self._codec, self._name)

    def slice(self, start: int, length: int) -> PandasColumn:
        """Return `length` rows from `start` on."""
        return PandasColumn(self.arrow.slice(start, length), self._codec, self._name)


Columns = Sequence[Any]


def arrow_of(columns: Columns) -> list[pa.Array]:
    """Arrow arrays of columns of either kind."""
    return [c.arrow if isinstance(c, PandasColumn) else c for c in columns]


def values_of(columns: Columns) -> list[Any]:
    """What the user's function is given for columns of either kind."""
    return [c.series if isinstance(c, PandasColumn) else c for c in columns]


def stopped(error: StopIteration) -> RuntimeError:
    """Error for a function that raised ``StopIteration``, which would end a loop quietly."""
    message = f"Caught StopIteration thrown from user's code; failing the task: {error}"
    return RuntimeError(message)


class Kind(Protocol):
    """Runs the user's function on the rows that have no recorded value."""

    def run(self, columns: Columns, key: Callable[[int], str]) -> pa.Array:
        """Results for all rows of `columns`; `key(i)` is the idempotency key of row `i`."""

    def close(self) -> None:
        """Release what the function was given to run in."""


class RowKind:
    """A plain function, called once per row with the first `arguments` columns."""

    def __init__(self, fn: Callable[..., Any], codec: RowCodec, arguments: int) -> None:
        self._fn = fn
        self._codec = codec
        self._arguments = arguments

    def run(self, columns: Columns, key: Callable[[int], str]) -> pa.Array:
        fn = self._fn
        lists = self._codec.to_lists(columns[: self._arguments])
        count = len(columns[0])
        rows: Iterator[Any]
        if len(lists) == 1:
            rows = iter(lists[0])
        else:
            rows = iter(list(zip(*lists, strict=True)) if lists else [()] * count)
        left = operator.length_hint
        # The iterator knows how far it is, so rows need no counter of ours.
        scope = Scope(None, lambda: key(count - left(rows) - 1))
        token = current.set(scope)
        try:
            results = [fn(row) for row in rows] if len(lists) == 1 else [fn(*row) for row in rows]
        except StopIteration as error:
            raise stopped(error) from error
        finally:
            current.reset(token)
        return self._codec.to_arrow(results)

    def close(self) -> None:
        pass


class AsyncKind:
    """A coroutine function: up to `concurrency` rows of a batch are under way at a time."""

    def __init__(
        self,
        fn: Callable[..., Coroutine[Any, Any, Any]],
        codec: RowCodec,
        arguments: int,
        concurrency: int,
    ) -> None:
        self._fn = fn
        self._codec = codec
        self._arguments = arguments
        self._concurrency = concurrency
        # One loop for the whole task: clients that the function keeps stay bound to it.
        self._runner = asyncio.Runner()

    def run(self, columns: Columns, key: Callable[[int], str]) -> pa.Array:
        lists = self._codec.to_lists(columns[: self._arguments])
        rows = list(zip(*lists, strict=True)) if lists else [()] * len(columns[0])
        return self._codec.to_arrow(self._runner.run(self._all(rows, key)))

    async def _all(self, rows: list[tuple[Any, ...]], key: Callable[[int], str]) -> list[Any]:
        results: list[Any] = [None] * len(rows)
        todo = iter(range(len(rows)))

        async def worker() -> None:
            for index in todo:
                current.set(Scope(None, functools.partial(key, index)))
                results[index] = await self._fn(*rows[index])

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency, len(rows))):
                group.create_task(worker())
        return results

    def close(self) -> None:
        self._runner.close()


class ArrowKind:
    """A scalar Arrow UDF: arrays in, one array of the same length out."""

    def __init__(self, fn: Callable[..., Any], arrow_type: pa.DataType) -> None:
        self._fn = fn
        self._type = arrow_type

    def run(self, columns: Columns, key: Callable[[int], str]) -> pa.Array:
        token = current.set(Scope(None, lambda: key(0)))
        try:
            return conform(self._fn(*columns), self._type, len(columns[0]))
        finally:
            current.reset(token)

    def close(self) -> None:
        pass


class PandasKind:
    """A scalar pandas UDF: series in, one series (or frame, for a struct) out."""

    def __init__(self, fn: Callable[..., Any], codec: PandasCodec) -> None:
        self._fn = fn
        self._codec = codec

    def run(self, columns: Columns, key: Callable[[int], str]) -> pa.Array:
        token = current.set(Scope(None, lambda: key(0)))
        try:
            result = self._fn(*values_of(columns))
        finally:
            current.reset(token)
        return self._codec.to_arrow(result, len(columns[0]))

    def close(self) -> None:
        pass


def one_or_tuple(columns: Columns) -> Any:
    """Shape in which an iterator UDF expects one batch."""
    values = values_of(columns)
    return values[0] if len(values) == 1 else tuple(values)


Batches = Iterator[Columns]
