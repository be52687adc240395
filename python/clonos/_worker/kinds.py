"""The kinds of functions that can be causal, and how a batch of rows is handed to each."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from clonos._keys import CallKeys
from clonos._services import Scope, current
from clonos._worker.answers import Answers
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
# Idempotency key of a row's n-th call.
Key = Callable[[int | None, int], str]


def arrow_of(columns: Columns) -> list[pa.Array]:
    """Arrow arrays of columns of either kind."""
    return [c.arrow if isinstance(c, PandasColumn) else c for c in columns]


def values_of(columns: Columns) -> list[Any]:
    """What the user's function is given for columns of either kind."""
    return [c.series if isinstance(c, PandasColumn) else c for c in columns]


def stopped(fn: Callable[..., Any]) -> Exception:
    """Error for a function that raised ``StopIteration``, which ends a loop quietly."""
    from pyspark.errors import PySparkRuntimeError

    error = PySparkRuntimeError(errorClass="STOP_ITERATION_OCCURRED", messageParameters={"exc": ""})
    if (code := getattr(inspect.unwrap(fn), "__code__", None)) is not None:
        # Its line went with it.
        error.add_note(f"{code.co_name}, line {code.co_firstlineno} of {code.co_filename}")
    return error


class Kind(Protocol):
    """Runs the user's function on the rows that have no recorded value."""

    def run(self, columns: Columns, key: Key, answers: Answers | None = None) -> pa.Array:
        """Results for all rows of `columns`; `key(i, n)` is the key of row `i`'s call `n`.

        Kinds that get answers one by one put them into `answers` as they come.
        """

    def close(self) -> None:
        """Release what the function was given to run in."""

    @property
    def takes_batches(self) -> bool:
        """Whether the function is given many rows at once."""


class RowKind:
    """A plain function, called once per row with the first `arguments` columns."""

    takes_batches = False

    def __init__(self, fn: Callable[..., Any], codec: RowCodec, arguments: int) -> None:
        self._fn = fn
        self._codec = codec
        self._arguments = arguments

    def run(self, columns: Columns, key: Key, answers: Answers | None = None) -> pa.Array:
        answers = answers or Answers()
        count = len(columns[0])
        lists = self._codec.to_lists(columns[: self._arguments])
        rows = iter(lists[0] if lists else [None] * count)
        left = operator.length_hint
        # The iterator knows how far it is, so rows need no counter of ours.
        scope = Scope(None, CallKeys(lambda: count - left(rows) - 1, key))
        fn = self._fn
        calls = map(fn, rows, *lists[1:]) if lists else (fn() for _row in rows)
        values = answers.begin(self._codec.to_arrow)
        token = current.set(scope)
        try:
            if answers.each:
                for value in calls:
                    values.append(value)
                    answers.save()
            else:
                # What was answered before an exception stays in the list.
                values.extend(calls)
        finally:
            current.reset(token)
        if len(values) != count:
            # It ends a `map` quietly.
            raise stopped(fn)
        return answers.array()

    def close(self) -> None:
        pass


def _whole() -> None:
    """One call is for the whole batch."""


class ArrowKind:
    """A scalar Arrow UDF: arrays in, one array of the same length out."""

    takes_batches = True

    def __init__(self, fn: Callable[..., Any], arrow_type: pa.DataType) -> None:
        self._fn = fn
        self._type = arrow_type

    def run(self, columns: Columns, key: Key, _answers: Answers | None = None) -> pa.Array:
        token = current.set(Scope(None, CallKeys(_whole, key)))
        try:
            return conform(self._fn(*columns), self._type, len(columns[0]))
        finally:
            current.reset(token)

    def close(self) -> None:
        pass


class PandasKind:
    """A scalar pandas UDF: series in, one series (or frame, for a struct) out."""

    takes_batches = True

    def __init__(self, fn: Callable[..., Any], codec: PandasCodec) -> None:
        self._fn = fn
        self._codec = codec

    def run(self, columns: Columns, key: Key, _answers: Answers | None = None) -> pa.Array:
        token = current.set(Scope(None, CallKeys(_whole, key)))
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
