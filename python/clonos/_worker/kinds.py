"""The kinds of functions that can be causal, and how a batch of rows is handed to each."""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import DataType

from clonos._services import Scope, current


class PandasColumn:
    """A column that pandas UDFs take as a series, with the Arrow image that is fingerprinted."""

    __slots__ = ("arrow", "series")

    def __init__(self, series: Any, arrow: pa.Array | None = None) -> None:
        self.series = series
        self.arrow: pa.Array = pandas_to_arrow(series) if arrow is None else arrow

    def __len__(self) -> int:
        return len(self.series)

    def take(self, rows: pa.Array) -> PandasColumn:
        """Return the rows at the given positions."""
        return PandasColumn(
            self.series.take(rows.to_numpy()).reset_index(drop=True), self.arrow.take(rows)
        )

    def slice(self, start: int, length: int) -> PandasColumn:
        """Return `length` rows from `start` on."""
        part = self.series.iloc[start : start + length].reset_index(drop=True)
        return PandasColumn(part, self.arrow.slice(start, length))


Columns = Sequence[Any]


def arrow_of(columns: Columns) -> list[pa.Array]:
    """Arrow arrays of columns of either kind."""
    return [c.arrow if isinstance(c, PandasColumn) else c for c in columns]


def values_of(columns: Columns) -> list[Any]:
    """What the user's function is given for columns of either kind."""
    return [c.series if isinstance(c, PandasColumn) else c for c in columns]


class Kind(Protocol):
    """Runs the user's function on the rows that have no recorded value."""

    def run(self, columns: Columns, key: Callable[[int], str]) -> pa.Array:
        """Results for all rows of `columns`; `key(i)` is the idempotency key of row `i`."""

    def close(self) -> None:
        """Release what the function was given to run in."""


class RowKind:
    """A plain function, called once per row."""

    def __init__(self, fn: Callable[..., Any], return_type: DataType) -> None:
        from clonos._worker.rows import RowCodec

        self._fn = fn
        self._codec = RowCodec(return_type)

    def run(self, columns: Columns, key: Callable[[int], str]) -> pa.Array:
        fn = self._fn
        lists = self._codec.to_lists(columns)
        count = len(lists[0])
        rows = iter(lists[0] if len(lists) == 1 else list(zip(*lists, strict=True)))
        left = operator.length_hint
        # The iterator knows how far it is, so rows need no counter of ours.
        scope = Scope(None, lambda: key(count - left(rows) - 1))
        token = current.set(scope)
        try:
            results = [fn(row) for row in rows] if len(lists) == 1 else [fn(*row) for row in rows]
        finally:
            current.reset(token)
        return self._codec.to_arrow(results)

    def close(self) -> None:
        pass


class NoArgumentKind:
    """A plain function without arguments, called once per row."""

    def __init__(self, fn: Callable[..., Any], return_type: DataType) -> None:
        self._rows = RowKind(lambda _row: fn(), return_type)

    def run(self, columns: Columns, key: Callable[[int], str]) -> pa.Array:
        return self._rows.run(columns[:1], key)

    def close(self) -> None:
        pass


class AsyncKind:
    """A coroutine function: up to `concurrency` rows of a batch are under way at a time."""

    def __init__(
        self,
        fn: Callable[..., Coroutine[Any, Any, Any]],
        return_type: DataType,
        concurrency: int,
    ) -> None:
        from clonos._worker.rows import RowCodec

        self._fn = fn
        self._codec = RowCodec(return_type)
        self._concurrency = concurrency
        # One loop for the whole task: clients that the function keeps stay bound to it.
        self._runner = asyncio.Runner()

    def run(self, columns: Columns, key: Callable[[int], str]) -> pa.Array:
        rows = list(zip(*self._codec.to_lists(columns), strict=True))
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

    def __init__(self, fn: Callable[..., Any], arrow_type: pa.DataType) -> None:
        self._fn = fn
        self._type = arrow_type

    def run(self, columns: Columns, key: Callable[[int], str]) -> pa.Array:
        token = current.set(Scope(None, lambda: key(0)))
        try:
            result = self._fn(*values_of(columns))
        finally:
            current.reset(token)
        return check_length(pandas_to_arrow(result, self._type), len(columns[0]))

    def close(self) -> None:
        pass


def conform(result: Any, arrow_type: pa.DataType, rows: int) -> pa.Array:
    """Array of the declared type and length that an Arrow function returned.

    Raises
    ------
    TypeError
        If it returned something other than an Arrow array.
    ValueError
        If it has another number of rows than the input.
    """
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if not isinstance(result, pa.Array):
        message = f"an Arrow function must return a pyarrow.Array, not {type(result).__name__}"
        raise TypeError(message)
    if result.type != arrow_type:
        result = result.cast(arrow_type)
    return check_length(result, rows)


def check_length(result: pa.Array, rows: int) -> pa.Array:
    """Return `result` if it has `rows` rows.

    Raises
    ------
    ValueError
        If it has not.
    """
    if len(result) != rows:
        message = f"the function was given {rows} rows and returned {len(result)}"
        raise ValueError(message)
    return result


def pandas_to_arrow(value: Any, arrow_type: pa.DataType | None = None) -> pa.Array:
    """Arrow image of a series, or of a frame as a struct.

    Times keep the type pandas gives them: Spark hands them over without a zone, in the session's,
    and takes them back so.
    """
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        return pa.RecordBatch.from_pandas(value, preserve_index=False).to_struct_array()
    if arrow_type is None or pa.types.is_temporal(arrow_type) or pa.types.is_nested(arrow_type):
        return pa.Array.from_pandas(value)
    return pa.Array.from_pandas(value, type=arrow_type)


def arrow_to_pandas(array: pa.Array) -> Any:
    """Series of an array, or frame of a struct array: the inverse of `pandas_to_arrow`."""
    if pa.types.is_struct(array.type):
        return pa.RecordBatch.from_struct_array(array).to_pandas()
    return array.to_pandas(date_as_object=True)


def one_or_tuple(columns: Columns) -> Any:
    """Shape in which an iterator UDF expects one batch."""
    values = values_of(columns)
    return values[0] if len(values) == 1 else tuple(values)


Batches = Iterator[Columns]
