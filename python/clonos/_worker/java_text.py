"""The text that the JVM makes of a pickled value, where a function was declared to give strings."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from functools import partial
from typing import Any

# Between these, Java writes doubles without an exponent.
_PLAIN_MIN, _PLAIN_MAX = 1e-3, 1e7
# How large the table of Java's HashMap is at first, and how full it may be.
_TABLE, _LOAD = 16, 0.75
_INT_MAX = 2**31


def java_text(value: Any) -> Any:
    """What ``toString`` gives for the object that Spark unpickles; what has none as such, as it is.

    Objects of other classes than these are refused by the JVM, or have a name there that says
    nothing.
    """
    write = _WRITERS.get(type(value))
    return value if write is None else write(value)


def _within(value: Any) -> str:
    return "null" if value is None else str(java_text(value))


def _double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or _PLAIN_MIN <= abs(value) < _PLAIN_MAX:
        return repr(value)
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    first, *rest = digits
    more = "".join(map(str, rest)) or "0"
    return f"{'-' if sign else ''}{first}.{more}E{int(exponent) + len(rest)}"


def _decimal(value: decimal.Decimal) -> str:
    # Java's has no zero below zero.
    return str(value or abs(value))


def _list(value: Any) -> str:
    return f"[{', '.join(map(_within, value))}]"


def _dict(value: dict[Any, Any]) -> str:
    """In the order of Java's HashMap: pickle's reader fills one from the end, and then another."""
    count = len(value)
    grown = _TABLE
    while count > _LOAD * grown:
        grown *= 2
    fitting = 1
    while fitting < int(count / _LOAD + 1):
        fitting *= 2
    items = list(reversed(value.items()))
    for size in (grown, fitting):
        items = sorted(items, key=partial(_bucket, size))
    return f"{{{', '.join(f'{_within(k)}={_within(v)}' for k, v in items)}}}"


def _bucket(size: int, item: tuple[Any, Any]) -> int:
    spread = _hash(item[0])
    return (spread ^ spread >> 16) & size - 1


def _hash(key: Any) -> int:
    """Java's hash of a key, as a number without sign; 0 for what is no text nor number."""
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int):
        if -_INT_MAX <= key < _INT_MAX:
            return key & 0xFFFFFFFF
        return (key ^ key >> 32) & 0xFFFFFFFF
    found = 0
    if isinstance(key, str):
        units = key.encode("utf-16-le", "surrogatepass")
        for low, high in zip(units[::2], units[1::2], strict=True):
            found = (31 * found + low + 256 * high) & 0xFFFFFFFF
    return found


_WRITERS: dict[type, Callable[[Any], str]] = {
    bool: lambda value: "true" if value else "false",
    float: _double,
    decimal.Decimal: _decimal,
    list: _list,
    set: _list,
    frozenset: _list,
    dict: _dict,
}
