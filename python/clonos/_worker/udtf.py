"""Table functions: each call of ``eval`` and ``terminate`` is recorded with the rows it gave.

A call is known by its arguments and by what the instance has kept of earlier ones: attributes that
changed since its first call. They are recorded with the rows and put back at replay, so that calls
that go on live see what they would have seen.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from clonos import _core
from clonos._named import Named
from clonos._worker.images import content_bytes
from clonos._worker.pieces import Pieces
from clonos._worker.state import State
from clonos._worker.tracebacks import of_user
from clonos._worker.udf import UdfSpec

RECORDED_METHODS = ("eval", "terminate")


def make_handler(spec: UdfSpec, handler: type) -> type:
    """Return a class that Spark runs in place of a table function's, under its name."""
    pieces = Pieces(spec)
    methods = {
        name: _recorded(pieces, getattr(handler, name))
        for name in RECORDED_METHODS
        if hasattr(handler, name)
    }
    methods["cleanup"] = _cleanup(pieces, handler)
    names = {"__module__": handler.__module__, "__qualname__": handler.__qualname__}
    return type(handler)(handler.__name__, (handler,), methods | names)


def _cleanup(pieces: Pieces, handler: type) -> Callable[..., Any]:
    """Return the method that Spark calls when a task is over, however it ended."""

    def cleanup(self: Any) -> None:
        try:
            # Also where the class has none of its own.
            getattr(handler, "cleanup", lambda _self: None)(self)
        finally:
            pieces.close()

    return cleanup


def _recorded(pieces: Pieces, method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generated(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            try:
                yield from call(pieces, method, self, args, kwargs) or ()
            except Exception as error:
                raise of_user(error)  # noqa: B904, it is the same error

        return generated

    @functools.wraps(method)
    def returned(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(pieces, method, self, args, kwargs)
        except Exception as error:
            raise of_user(error)  # noqa: B904, it is the same error

    return returned


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call did: its rows, what it changed of its instance, if it wants no more rows."""

    rows: Any
    changes: bytes | None
    skip: BaseException | None


def call(
    pieces: Pieces,
    method: Callable[..., Any],
    instance: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return the rows of one call of a table function's method, now or as recorded.

    Raises
    ------
    ConfigError
        If the instance keeps more than is recorded with each call.
    """
    if pieces.under_way or not pieces.is_recorded:
        return method(instance, *args, **kwargs)
    name = method.__name__.encode()
    arguments = [_argument_bytes(value) for value in (*args, *kwargs.values())]
    columns = [_column(name, *map(str.encode, kwargs), *arguments)]
    if not pieces.replays_outcomes:
        rows, skip = pieces.run(columns, lambda: _rows_of(method, instance, args, kwargs))
        return rows if skip is None else _then_skip(rows, skip)
    kind: Any = type(instance)
    state = State(instance, pieces.spec.uid, _named(kind))
    columns.append(_column(*state.identity()))
    ran = False

    def work() -> Outcome:
        nonlocal ran
        ran = True
        rows, skip = _rows_of(method, instance, args, kwargs)
        return Outcome(rows, state.changes(), skip)

    outcome = pieces.run(columns, work)
    if not ran:
        state.restore(outcome.changes)
    return outcome.rows if outcome.skip is None else _then_skip(outcome.rows, outcome.skip)


@functools.lru_cache(maxsize=16)
def _named(kind: Any) -> Named:
    # The class of the program: see `make_handler`.
    return Named(kind.__bases__[0])


def _rows_of(
    method: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    from pyspark.sql.udtf import SkipRestOfInputTableException

    rows: list[Any] = []
    try:
        result = method(instance, *args, **kwargs)
        if not isinstance(result, Iterator):
            return result, None
        rows.extend(result)
    except SkipRestOfInputTableException as skip:
        return rows, skip
    return rows, None


def _then_skip(rows: Any, skip: BaseException) -> Iterator[Any]:
    yield from rows
    raise skip


def _argument_bytes(value: Any) -> bytes:
    """Bytes that are the same for equal arguments."""
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return _rows_bytes([value])
    if isinstance(value, (pa.RecordBatch, pa.Table)):
        return "\0".join(value.schema.names).encode() + _rows_bytes(value.columns)
    return content_bytes(value)


def _rows_bytes(columns: list[Any]) -> bytes:
    if not columns:
        return b""
    arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
    prints = _core.row_fingerprints(arrays)
    return b"".join(number.to_bytes(8, "little") for number in prints.to_pylist())


def _column(*parts: bytes) -> pa.Array:
    """One row that is the same for the same bytes."""
    prints = [_core.bytes_fingerprint(part).to_bytes(8, "little") for part in parts]
    return pa.array([b"".join(prints)], pa.large_binary())
