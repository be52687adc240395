"""What a `BatchProcessor` returns, as it is declared; or an error that names what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from clonos._state.batch_processor import Handled
from clonos._state.batch_state import counts_of, lists_of
from clonos.errors import UnsupportedType

CONDITION = "UNSUPPORTED_TYPE"
_NO_COLUMNS = pa.schema([])


def as_handled(method: str, made: Any) -> Handled:
    """Take what a handler returned: a pair, or `Handled`.

    Raises
    ------
    UnsupportedType
        If it is neither.
    """
    if isinstance(made, Handled):
        return made
    if not isinstance(made, tuple) or len(made) != len(("output", "state")):
        message = (
            f"{method} returns a pair, the rows of output and the state, or clonos.Handled, and "
            f"returned {type(made).__name__}"
        )
        raise UnsupportedType(message, CONDITION)
    return Handled(*made)


def as_started(method: str, made: Any) -> Handled:
    """Take what a handler of an initial state returned: the state, or `Handled` without output.

    Raises
    ------
    UnsupportedType
        If there is output.
    """
    handled = made if isinstance(made, Handled) else Handled(None, made)
    if handled.output is not None:
        message = f"{method} returns no output, as nothing has come yet, and returned some"
        raise UnsupportedType(message, CONDITION)
    return handled


def as_declared(
    what: str,
    found: Any,
    schema: pa.Schema,
    rows: int | None = None,
    optional: pa.Schema = _NO_COLUMNS,
) -> pa.Table:
    """Take what a handler returned by name, with the declared types; `optional` may be missing.

    Raises
    ------
    UnsupportedType
        If it is no Arrow, has other columns or another number of rows, or a value does not fit;
        the message names it.
    """
    if not isinstance(found, pa.RecordBatch | pa.Table):
        raise _wrong(what, f"is no pyarrow.RecordBatch or Table, but {type(found).__name__}")
    names = found.schema.names
    schema = pa.schema([*schema, *(field for field in optional if field.name in names)])
    if sorted(names) != sorted(schema.names):
        declared = [*schema.names, *(name for name in optional.names if name not in names)]
        raise _wrong(what, f"has the columns {names}, and declared are {declared}")
    if rows is not None and len(found) != rows:
        reason = f"has {len(found)} rows, and there are {rows} keys: it needs one for each"
        raise _wrong(what, reason)
    columns = []
    # By place where the names are in order: two columns may have one name.
    places = range(len(schema)) if names == schema.names else schema.names
    for place, field in zip(places, schema, strict=True):
        column: Any = found.column(place)
        if column.type != field.type:
            if not _may_be(column.type, field.type):
                reason = f"has {field.name!r} as {column.type}, which is declared {field.type}"
                raise _wrong(what, reason)
            try:
                column = _cast(column, field.type)
            except pa.ArrowException as error:
                reason = f"has {field.name!r} as {column.type}, which is declared {field.type}"
                raise _wrong(what, f"{reason}: {error}") from error
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def as_timers(what: str, found: Any, rows: int) -> pa.ListArray:
    """Take the timers that a handler returned, one or a list for each key: sorted, each once.

    Raises
    ------
    UnsupportedType
        If they are no milliseconds, or not one for each key.
    """
    if not isinstance(found, pa.Array | pa.ChunkedArray):
        raise _wrong(what, f"are no pyarrow.Array, but {type(found).__name__}")
    if len(found) != rows:
        reason = f"are {len(found)}, and there are {rows} keys: one for each is needed, or a null"
        raise _wrong(what, reason)
    column: Any = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    kind = pa.list_(pa.int64()) if is_list else pa.int64()
    of = column.type.value_type if is_list else column.type
    if not (pa.types.is_integer(of) or pa.types.is_null(of)):
        raise _wrong(what, f"are {column.type}, and not milliseconds since 1970 (int64)")
    try:
        column = column.cast(kind)
    except pa.ArrowException as error:
        raise _wrong(what, f"are {column.type}, which is no int64: {error}") from error
    counts = counts_of(column) if is_list else np.asarray(column.is_valid()).astype(np.int64)
    times = column.flatten() if is_list else column.drop_null()
    if times.null_count:
        raise _wrong(what, "have a null in a list")
    pairs = np.stack([np.repeat(np.arange(rows), counts), np.asarray(times)])
    numbers, expiries = np.unique(pairs, axis=1)
    sizes = np.bincount(numbers, minlength=rows)
    return lists_of(sizes, pa.array(expiries, pa.int64()), pa.int64())


def _may_be(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of a type mean the same in the declared one, if they fit.

    Arrow casts more: fields that a struct lacks become nulls, and numbers microseconds.
    """
    types = pa.types
    if found == declared or types.is_null(found):
        return True
    if types.is_dictionary(found):
        return _may_be(found.value_type, declared)
    if types.is_struct(declared):
        return types.is_struct(found) and _have_fields(list(found), list(declared))
    if types.is_map(declared):
        keys = types.is_map(found) and _may_be(found.key_type, declared.key_type)
        return keys and _may_be(found.item_type, declared.item_type)
    if _is_list(declared):
        return _is_list(found) and _may_be(found.value_type, declared.value_type)
    if types.is_timestamp(declared):
        return types.is_timestamp(found) and (found.tz is None) == (declared.tz is None)
    one_is = (types.is_floating, types.is_decimal)
    if all(kind(found) != kind(declared) for kind in one_is):
        # Between decimal and binary fractions a value is rounded.
        return False
    return any(all(kind(one) for one in (found, declared)) for kind in _KINDS)


def _cast(column: Any, declared: pa.DataType) -> Any:
    types = pa.types
    if types.is_integer(column.type) and types.is_decimal(declared):
        # Arrow asks for room for all numbers of the type, not for those that there are.
        column = column.cast(pa.decimal128(_DIGITS, min(declared.scale, _DIGITS - _LONG_DIGITS)))
    return column.cast(declared)


def _have_fields(found: list[pa.Field], declared: list[pa.Field]) -> bool:
    kinds = {field.name: field.type for field in found}
    if len(found) != len(kinds) or kinds.keys() != {field.name for field in declared}:
        return False
    return all(_may_be(kinds[field.name], field.type) for field in declared)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    kinds = (types.is_binary, types.is_large_binary, types.is_binary_view)
    return any(one(kind) for one in (*kinds, types.is_fixed_size_binary))


# Of the widest decimal of Spark's, and of its widest integer.
_DIGITS, _LONG_DIGITS = 38, 19
_KINDS = (_is_number, _is_text, _is_bytes, pa.types.is_date, pa.types.is_time, pa.types.is_duration)


def _wrong(what: str, reason: str) -> UnsupportedType:
    return UnsupportedType(f"the {what} returned {reason}", CONDITION)
