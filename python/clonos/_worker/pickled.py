"""What Spark's pickled UDFs make of a result that is not of the declared type.

Their results reach the JVM as pickled values, and ``EvaluatePython.makeFromJava`` takes those that
are of the declared type; another is null, except that anything becomes a string.
"""

from __future__ import annotations

import array
import datetime as dt
import decimal
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkRuntimeError, PySparkValueError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
)

from clonos._worker.java_text import java_text

Converter = Callable[[Any], Any]
_NONE = type(None)
# More than a type has, also of what is rounded up.
_DECIMAL_DIGITS = 40
# What the JVM reads from a pickle. Of another type than the declared one, it is null.
_READ = {
    *(_NONE, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset),
    *(array.array, decimal.Decimal, uuid.UUID),
    *(dt.date, dt.datetime, dt.time, dt.timedelta, OrderedDict),
}
# What PySpark asks values of these types for.
_ASKED: dict[type[DataType], str] = {
    DateType: "toordinal",
    TimestampType: "tzinfo",
    DayTimeIntervalType: "total_seconds",
}
_SURROGATE = re.compile("[\ud800-\udfff]")


def plain_types(declared: DataType) -> frozenset[type] | None:
    """Python types that need no conversion to `declared`; ``None`` if all results need one."""
    if isinstance(declared, StringType):
        return frozenset((str, _NONE))
    if isinstance(declared, BooleanType):
        return frozenset((bool, _NONE))
    if isinstance(declared, IntegralType):
        return frozenset((int, _NONE))
    if isinstance(declared, FloatType | DoubleType):
        return frozenset((float, _NONE))
    if isinstance(declared, BinaryType):
        return frozenset((bytes, _NONE))
    return None


def pickled_converter(declared: DataType) -> Converter | None:
    """Return what maps a result to one that Arrow takes as `declared`; ``None`` if nothing does.

    Parameters
    ----------
    declared : pyspark.sql.types.DataType
        Type of the result.
    """
    if isinstance(declared, StringType):
        # Of the rest, the converter to Arrow makes a string.
        return java_text
    if isinstance(declared, BinaryType):
        return _binary
    if isinstance(declared, DecimalType):
        return _decimal_converter(declared.precision, declared.scale)
    plain = plain_types(declared)
    if plain is not None:
        return lambda value: value if type(value) in plain else _numpy_like(value, plain)
    if isinstance(declared, TimestampNTZType):
        return _wall_clock
    for kind, attribute in _ASKED.items():
        if isinstance(declared, kind):
            return _having(attribute)
    if isinstance(declared, ArrayType):
        return _list_converter(declared)
    if isinstance(declared, MapType):
        return _map_converter(declared)
    if isinstance(declared, StructType):
        return _struct_converter(declared)
    if isinstance(declared, UserDefinedType):
        return None
    return None


def _numpy_like(value: Any, plain: frozenset[type]) -> Any:
    """Subclasses of the plain types (an ``IntEnum``) are pickled as what they are: nothing."""
    if isinstance(value, bool):
        return None
    if float in plain and isinstance(value, decimal.Decimal) and value.is_nan():
        # Java has one for doubles only, and it is pickled as that.
        return float("nan")
    return value if isinstance(value, tuple(plain)) else _nothing(value)


def _nothing(value: Any) -> None:
    """What becomes of a result of another type; what the JVM cannot read is an error.

    As with plain functions, if in other words: a column of nulls would be no help.
    """
    if type(value) not in _READ and not isinstance(value, BaseException):
        message = (
            f"the function returned {type(value).__module__}.{type(value).__qualname__}, which "
            "pickled functions cannot hand over: convert it, as with int(value) or value.tolist(), "
            "or set spark.sql.execution.pythonUDF.arrow.enabled"
        )
        raise TypeError(message)


def _having(attribute: str) -> Converter:
    """Take what PySpark asks for `attribute` before it pickles it; others lack it, in its words."""

    def convert(value: Any) -> Any:
        if value is not None:
            getattr(value, attribute)
        return value

    return convert


def _wall_clock(value: Any) -> Any:
    """Leave the zone away: PySpark pickles what the clock on the wall shows."""
    return None if value is None else value.replace(microsecond=value.microsecond, tzinfo=None)


def without_surrogates(value: Any) -> Any:
    """Put a replacement character for each unpaired surrogate, as Java does when it reads text."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, tuple):
        return tuple(without_surrogates(item) for item in value)
    if isinstance(value, dict):
        return {without_surrogates(k): without_surrogates(v) for k, v in value.items()}
    return value


def _binary(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value).encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def _list_converter(declared: ArrayType) -> Converter:
    element = pickled_converter(declared.elementType)

    def convert(value: Any) -> Any:
        if isinstance(value, bytes | bytearray):
            value = list(value)
        if not isinstance(value, list | tuple | array.array):
            return _nothing(value)
        return list(value) if element is None else [element(item) for item in value]

    return convert


def _map_converter(declared: MapType) -> Converter:
    key = pickled_converter(declared.keyType) or _same
    item = pickled_converter(declared.valueType) or _same

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return _nothing(value)
        return {key(k): item(v) for k, v in value.items()}

    return convert


def _struct_converter(declared: StructType) -> Converter:
    converters = [pickled_converter(field.dataType) or _same for field in declared.fields]
    names = declared.names

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict):
            return {n: c(value.get(n)) for n, c in zip(names, converters, strict=True)}
        if isinstance(value, tuple | list):
            if len(value) != len(names):
                raise _wrong_struct(len(value), len(names))
            return tuple(c(item) for c, item in zip(converters, value, strict=True))
        if not hasattr(value, "__dict__"):
            raise PySparkValueError(
                errorClass="UNEXPECTED_TUPLE_WITH_STRUCT", messageParameters={"tuple": str(value)}
            )
        held = value.__dict__
        return {n: c(held.get(n)) for n, c in zip(names, converters, strict=True)}

    return convert


def _wrong_struct(given: int, declared: int) -> Exception:
    # Spelled out: with plain functions it is the JVM that says so.
    message = (
        "[STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of values required "
        f"by the schema. {declared} fields are required while {given} values are provided."
    )
    return PySparkRuntimeError(message)


def _same(value: Any) -> Any:
    return value


def _decimal_converter(precision: int, scale: int) -> Converter:
    """Round as the JVM does, which refuses what does not fit, and has nothing for the rest."""
    # Enough for whatever is below the limit, which refuses what is longer. The thread's own may
    # have fewer digits.
    context = decimal.Context(prec=_DECIMAL_DIGITS, rounding=decimal.ROUND_HALF_UP)
    unit = decimal.Decimal(1).scaleb(-scale, context)
    limit = decimal.Decimal(1).scaleb(precision - scale, context)

    def convert(value: Any) -> decimal.Decimal | None:
        if not isinstance(value, decimal.Decimal) or value.is_qnan():
            return None
        if value.is_finite() and value.copy_abs() < limit:
            rounded = value.quantize(unit, context=context)
            if rounded.copy_abs() < limit:
                return rounded
        message = (
            f"[NUMERIC_VALUE_OUT_OF_RANGE.WITHOUT_SUGGESTION] The {value} cannot be represented as "
            f"Decimal({precision}, {scale}): round it, or declare the result with more digits. "
            "SQLSTATE: 22003"
        )
        raise ArithmeticError(message)

    return convert
