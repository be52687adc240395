"""The user's function with what its kind is handed and what becomes of its results."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.types import DataType

from clonos._arrow_types import arrow_type
from clonos._worker import kinds
from clonos._worker.async_kind import AsyncKind
from clonos._worker.results import conform, wrong_type
from clonos._worker.rows import RowCodec
from clonos._worker.task_conf import current_conf
from clonos._worker.udf import ARROW, ASYNC, PANDAS, PANDAS_ITER, UdfSpec, by_name


class UserFunction:
    """One task's function; all converters are chosen here, once.

    Parameters
    ----------
    spec : UdfSpec
    fn : callable
        What the user wrote, with the options of its calls.
    loop : asyncio.Runner, optional
        Event loop in which a coroutine function must run.
    """

    def __init__(
        self, spec: UdfSpec, fn: Callable[..., Any], loop: asyncio.Runner | None = None
    ) -> None:
        self.spec = spec
        self._loop = loop
        self.called = by_name(fn, spec)
        self.conf = current_conf(spec.conf)
        self._return_type: DataType = spec.return_type
        self._pandas = self._pandas_codec() if spec.kind in (PANDAS, PANDAS_ITER) else None
        self._arrow_type = arrow_type(self._return_type, large=self.conf.large_types)

    def _pandas_codec(self) -> Any:
        # Pandas is imported where a function uses it and nowhere else.
        from clonos._worker.pandas_codec import PandasCodec

        return PandasCodec(self._return_type, self.conf)

    def row_codec(self) -> RowCodec:
        """Converter of a row function's arguments and results."""
        spec = self.spec
        return RowCodec(self._return_type, spec.types, self.conf, spec.pickled)

    def columns(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Columns of each batch that Spark hands over."""
        for batch in batches:
            arrays = batch if isinstance(batch, tuple) else (batch,)
            if self._pandas is None:
                yield arrays
            else:
                named = enumerate(arrays)
                yield [kinds.PandasColumn(a, self._pandas, f"_{index}") for index, a in named]

    def kind(self) -> kinds.Kind:
        """What runs the function on whole batches, or row by row."""
        spec = self.spec
        if spec.kind == ARROW:
            return kinds.ArrowKind(self.called, self._arrow_type)
        if self._pandas is not None:
            return kinds.PandasKind(self.called, self._pandas)
        if spec.kind == ASYNC:
            return AsyncKind(
                self.called,
                self.row_codec(),
                spec.arguments,
                spec.concurrency,
                loop=self._loop,
                # Equal rows are counted if the function may ask for keys.
                tells_rows=spec.count_occurrences,
            )
        return kinds.RowKind(self.called, self.row_codec(), spec.arguments)

    def of_row(self) -> Callable[..., Any]:
        """The function of one row; a coroutine function as a plain one."""
        if self.spec.kind != ASYNC:
            return self.called
        # One at a time: its services must be asked in one order.
        runner = self._loop or asyncio.Runner()
        # A loop that is kept for the next tasks would run them in the context of the first.
        return lambda *row: runner.run(self.called(*row), context=contextvars.copy_context())

    def whole(self, values: list[Any]) -> Any:
        """Result of a vectorised function for one batch, as an Arrow array."""
        result = self.called(*values[: self.spec.arguments])
        if self._pandas is not None:
            return self._pandas.to_arrow(result, len(values[0]))
        return conform(result, self._arrow_type, len(values[0]))

    def started(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Start an iterator function on `batches`.

        Raises
        ------
        PySparkTypeError
            If it returns no iterator.
        """
        results = self.called(batches)
        if not isinstance(results, Iterator):
            raise wrong_type(self._expected_iterator(), results)
        return results

    def element(self, result: Any) -> Any:
        """Arrow array of what an iterator function yields."""
        if self._pandas is not None:
            return self._pandas.to_arrow(self._pandas.check_element(result), len(result))
        if not hasattr(result, "__len__"):
            raise wrong_type(self._expected_iterator(), result, "iterator of ")
        return conform(result, self._arrow_type, len(result))

    def elements(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Arrow arrays of all that an iterator function yields."""
        return map(self.element, self.started(batches))

    def _expected_iterator(self) -> str:
        if self._pandas is None:
            return "iterator of pyarrow.Array"
        return f"iterator of {self._pandas.expected}"
