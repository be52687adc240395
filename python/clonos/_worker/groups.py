"""Groups of rows: ``applyInPandas``, ``applyInArrow``, cogroups, aggregates, whole partitions.

A group is known by its key, as far as the function is given it, and by its rows, in any order: a
shuffle that is repeated may bring them in another. A group with other rows is another group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from numbers import Number
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from clonos import _core
from clonos._worker.calls import prepared
from clonos._worker.images import content_bytes
from clonos._worker.libraries import LIBRARIES, Libraries
from clonos._worker.pieces import Pieces, listed
from clonos._worker.tracebacks import of_user
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from clonos._worker.udf import UdfSpec

# What Spark passes to a function besides the key and the state.
MOST_INPUTS = 2
# By the kinds of numpy's types. All numbers are one: whether an array of whole numbers has floats
# depends on nulls in the others of its batch.
_NUMPY_KINDS: dict[str, type] = {"b": bool, "i": Number, "u": Number, "f": Number}
_TOLD_BY_ARROW = frozenset({str, bytes, bool, Decimal, date, Number})


class _Read(list[Any]):
    """All batches of an iterator, which each try reads from the start."""


def is_group(args: tuple[Any, ...]) -> bool:
    """Whether Spark calls a function with these arguments for a group, or a whole partition."""
    inputs = args[1:] if args and isinstance(args[0], tuple) else args
    return 0 < len(inputs) <= MOST_INPUTS and _is_input(inputs[0])


def _is_input(value: Any) -> bool:
    if isinstance(value, (pa.Table, Iterator)):
        return True
    # Where pandas was not imported there is no frame.
    return type(value).__name__ == "DataFrame" and hasattr(value, "iloc")


def call_group(pieces: Pieces, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return what `run_group` does; what it raises begins at the user's code."""
    try:
        return run_group(pieces, fn, args)
    except Exception as error:
        raise of_user(error)  # noqa: B904, it is the same error


def run_group(pieces: Pieces, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return what `fn` makes of one group: frames, tables, or iterators of either.

    Raises
    ------
    ConfigError
        If Spark keeps state for the function, which is not recorded.
    """
    keys, inputs = (args[:1], args[1:]) if isinstance(args[0], tuple) else ((), args)
    if not all(_is_input(value) for value in inputs):
        message = (
            f"{pieces.spec.uid} cannot be causal under applyInPandasWithState: its state is "
            "Spark's. Use a plain function there, and call the service in a causal UDF before it"
        )
        raise ConfigError(message, "CONFIG")
    spec = pieces.spec
    if spec.calls is not None and spec.calls.on_error != "raise":
        message = f"{spec.uid}: on_error= is for functions of one row, not of a group"
        raise ConfigError(message, "CONFIG")
    if spec.calls is None and not pieces.is_recorded:
        return fn(*args)

    def whole(*given: Any) -> Any:
        # Read here, so that what a generator raises is the call's, and from the start at each try.
        return listed(fn(*(iter(value) if isinstance(value, _Read) else value for value in given)))

    config = None if spec.config is None else _core.SessionConfig.from_bytes(spec.config)
    with prepared(spec.calls, whole, spec.uid, config, asynchronous=False) as (call, _loop):
        return _run_group(pieces, call, keys, inputs)


def _run_group(
    pieces: Pieces, fn: Callable[..., Any], keys: tuple[Any, ...], inputs: tuple[Any, ...]
) -> Any:
    # Groups are read whole: which of them this is, only all of its rows can say.
    read = [_Read(value) if isinstance(value, Iterator) else value for value in inputs]
    columns = []
    if pieces.is_recorded:
        columns = [_value_image(value) for key in keys for value in key]
        columns += [part for value in read for part in _rows_image(value)]
    result = pieces.run(columns, lambda: fn(*keys, *read))
    return iter(result) if isinstance(result, list) else result


def make_aggregate(spec: UdfSpec, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that Spark runs in place of an aggregate `fn`, under its name.

    It is given a series or an array for each column, or an iterator of them; those after the
    function's own identify the group.
    """
    pieces = Pieces(spec)

    def body(*args: Any, _libraries: Libraries = LIBRARIES) -> Any:
        from clonos._worker.udf import by_name

        try:
            return run_aggregate(pieces, by_name(fn, spec), args)
        except Exception as error:
            raise of_user(error)  # noqa: B904, it is the same error

    body.__name__ = body.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
    body.__doc__ = fn.__doc__
    return body


def run_aggregate(pieces: Pieces, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return the value of one group, or of one frame of a window."""
    count = pieces.spec.arguments
    if not pieces.is_recorded and not pieces.spec.keyed:
        return fn(*args)
    if not isinstance(args[0], Iterator):
        return pieces.run(_multiset([args]), lambda: fn(*args[:count]))
    batches = [batch if isinstance(batch, tuple) else (batch,) for batch in args[0]]
    columns = _multiset(batches)
    given = (batch[0] if count == 1 else batch[:count] for batch in batches)
    return pieces.run(columns, lambda: fn(given))


def _rows_image(value: Any) -> list[pa.Array]:
    """One row that stands for the rows of a table, a frame, or a list of batches of either."""
    batches = value if isinstance(value, list) else [value]
    names = [str(name) for batch in batches[:1] for name in _names(batch)]
    named = _core.bytes_fingerprint("\0".join(names).encode())
    return [_number(named), *_multiset([_columns(batch) for batch in batches])]


def _joined(batches: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Batches as one: the types of a column of pandas are inferred from all that is in it."""
    if len(batches) < 2 or not all(type(c).__name__ == "Series" for b in batches for c in b):  # noqa: PLR2004
        return batches
    import pandas as pd

    return [tuple(pd.concat(parts, ignore_index=True) for parts in zip(*batches, strict=True))]


def _names(batch: Any) -> Any:
    return batch.column_names if isinstance(batch, (pa.Table, pa.RecordBatch)) else batch.columns


def _columns(batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, (pa.Table, pa.RecordBatch)):
        return tuple(batch.columns)
    return tuple(batch.iloc[:, index] for index in range(batch.shape[1]))


def _multiset(batches: list[tuple[Any, ...]]) -> list[pa.Array]:
    """Count and sum of the fingerprints of rows: the same in whichever order they come."""
    rows = total = 0
    for columns in _joined(batches):
        if columns and len(columns[0]):
            prints = _core.row_fingerprints([image(column) for column in columns])
            rows += len(prints)
            # The sum of unsigned numbers wraps around, which is wanted.
            total += pc.sum(prints).as_py()
    return [_number(rows), _number(total % 2**64)]


def image(column: Any) -> pa.Array:
    """Arrow array of a column, to be fingerprinted."""
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    if isinstance(column, pa.Array):
        return column
    if column.dtype != object or _is_told_by_arrow(column):
        try:
            return pa.Array.from_pandas(column)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # Such as text with half a character in it.
            pass
    return pa.array([content_bytes(value) for value in column], pa.large_binary())


def _is_told_by_arrow(column: Any) -> bool:
    """Whether the array that Arrow infers of a column of objects tells all of them apart.

    Of dicts it makes structs, in whose rows their keys do not count, nor which of them are missing;
    values of two types become one, and a NaN nothing.
    """
    kinds = _kinds(column)
    return len(kinds) <= 1 and kinds <= _TOLD_BY_ARROW


def _kinds(values: Any) -> set[type]:
    """Types of what is in a column, or in the arrays in it, apart from nothing."""
    import numpy as np

    kinds: set[type] = set(map(type, values)) - {type(None)}
    if np.ndarray in kinds:
        kinds.remove(np.ndarray)
        for value in values:
            if type(value) is np.ndarray:
                plain = _NUMPY_KINDS.get(value.dtype.kind, value.dtype.type)
                kinds |= _kinds(value) if value.dtype.hasobject else {plain}
    return kinds


def _value_image(value: Any) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], value.type)
    return pa.array([content_bytes(value)], pa.large_binary())


def _number(value: int) -> pa.Array:
    return pa.array([value], pa.uint64())
