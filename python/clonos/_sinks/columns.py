"""Columns of Arrow batches as what targets take: text, JSON, lists of Python values.

Whole columns at once where Arrow can; row by row only what it has no function for.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# The characters that JSON wants escaped; the rest of the control characters are rare.
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_SPECIAL = r"[\x00-\x1f\"\\]"
_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f]"


def is_nested(kind: pa.DataType) -> bool:
    """Return whether values of this type have parts."""
    return bool(pa.types.is_nested(kind))


def iso_text(column: pa.Array) -> pa.Array:
    """Return timestamps as ISO text; those with a time zone in UTC, with a ``Z``."""
    # Far faster than `strftime`: text of times without a zone needs no calendar of zones.
    zoned = column.type.tz is not None
    if zoned:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    bare = column.cast(pa.timestamp(column.type.unit)).cast(pa.string())
    found = pc.utf8_replace_slice(bare, start=10, stop=11, replacement="T")
    return pc.binary_join_element_wise(found, "Z", "") if zoned else found


def plain(value: Any) -> Any:
    """Return a Python value in terms of JSON."""
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _with_objects(value: Any, kind: pa.DataType) -> Any:
    """Turn maps, which Arrow gives as lists of pairs, into dictionaries, at any depth."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {plain(k): _with_objects(v, kind.item_type) for k, v in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_with_objects(v, kind.value_type) for v in value]
    if pa.types.is_struct(kind):
        return {field.name: _with_objects(value[field.name], field.type) for field in kind}
    return value


def nested_json(column: pa.Array) -> pa.Array:
    """Return lists, maps and structs as JSON text, nulls as nulls."""
    values = (_with_objects(value, column.type) for value in column.to_pylist())
    texts = [v if v is None else json.dumps(plain(v), ensure_ascii=False) for v in values]
    return pa.array(texts, pa.string())


def _quoted(column: pa.Array) -> pa.Array:
    """Return text as JSON strings."""
    text = column
    # Most columns have nothing to escape, and looking is cheaper than replacing.
    if pc.any(pc.match_substring_regex(text, pattern=_SPECIAL)).as_py():
        for raw, escaped in _ESCAPES:
            text = pc.replace_substring(text, pattern=raw, replacement=escaped)
        if pc.any(pc.match_substring_regex(text, pattern=_CONTROL)).as_py():
            texts = column.to_pylist()
            whole = [v if v is None else json.dumps(v, ensure_ascii=False) for v in texts]
            return pa.array(whole, column.type)
    mark = pa.scalar('"', column.type)
    return pc.binary_join_element_wise(mark, text, mark, pa.scalar("", column.type))


def _number(column: pa.Array) -> pa.Array:
    """Return numbers as JSON; what is no number is a string, as Spark reads it."""
    text = column.cast(pa.string())
    if not pa.types.is_floating(column.type):
        return text
    odd = pc.invert(pc.is_finite(column))
    if not pc.any(odd).as_py():
        return text
    names = pc.if_else(pc.is_nan(column), '"NaN"', '"Infinity"')
    names = pc.if_else(pc.equal(column, float("-inf")), '"-Infinity"', names)
    return pc.if_else(odd, names, text)


def json_values(column: pa.Array) -> pa.Array:
    """Return each value as JSON text, nulls as nulls."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(column.cast(pa.string()))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _number(column)
    if pa.types.is_timestamp(kind):
        return _quoted(iso_text(column))
    if is_nested(kind):
        return nested_json(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        encoded = [v if v is None else base64.b64encode(v).decode() for v in column.to_pylist()]
        return _quoted(pa.array(encoded, pa.string()))
    return _quoted(text(column))


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Return a batch as lines of JSON; columns that are null are left out, as Spark does."""
    members = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        head = json.dumps(name, ensure_ascii=False) + ":"
        member = pc.binary_join_element_wise(head, json_values(column), ",", "")
        members.append(pc.fill_null(member, ""))
    if not members:
        return bytes(b"{}\n" * batch.num_rows)
    # Values end in a digit, a quote or a bracket, so what is trimmed is the last comma.
    body = pc.ascii_rtrim(pc.binary_join_element_wise(*members, ""), characters=",")
    return text_bytes(pc.binary_join_element_wise("{", body, "}\n", ""))


def text_bytes(texts: pa.Array) -> bytes:
    """Return all texts of a column of strings without nulls, one after the other."""
    _, offsets, data = texts.buffers()
    ends = memoryview(offsets).cast("i")
    begin, end = ends[texts.offset], ends[texts.offset + len(texts)]
    return b"" if data is None else bytes(memoryview(data)[begin:end])


def text(column: pa.Array) -> pa.Array:
    """Return a column of anything that Arrow can cast to text."""
    try:
        return column.cast(pa.string())
    except pa.ArrowNotImplementedError:
        return pa.array([v if v is None else str(v) for v in column.to_pylist()], pa.string())


def python_values(column: pa.Array) -> list[Any]:
    """Return a column as a list of Python values."""
    fast = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if texts or (fast and column.null_count == 0):
        try:
            values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        except ImportError:  # numpy is not there; it is only the faster way
            pass
        else:
            return values
    found: list[Any] = column.to_pylist()
    return found
