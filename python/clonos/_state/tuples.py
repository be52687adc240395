"""State values between what a processor writes, what it reads again, and Arrow.

A value crosses to the JVM and back in Spark, which changes it: a number of another type than the
declared one becomes null, a whole number is cut, an instant loses its zone. The values that stay as
they are, nearly all, are told by their types alone.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    Row,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from clonos._worker.rows import RowCodec
from clonos._worker.task_conf import TaskConf

_NONE = type(None)
# Python types of which Spark gives a value back as it was written.
_KEPT: dict[type[DataType], type] = {
    BooleanType: bool,
    ByteType: int,
    ShortType: int,
    IntegerType: int,
    LongType: int,
    DoubleType: float,
    StringType: str,
    DateType: dt.date,
}
_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
# Of these no part can be changed in place by who was given one.
_UNCHANGEABLE = (*_KEPT, TimestampType, TimestampNTZType)
# The one that all NaNs in keys become: Python finds an object in a dictionary that is not equal to
# itself if it is the same object.
_NAN = float("nan")


def plain(value: Any) -> Any:
    """Return what PySpark makes of NumPy's and pandas' scalars, on their own or within a value."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Row) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return type(value)(*map(plain, value))
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist") and not value.shape:
        return value.tolist()
    for method in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


_PLAIN = frozenset((bool, int, float, str, bytes, dt.datetime, _NONE))


class TupleCodec:
    """Converts the tuples of one schema.

    Parameters
    ----------
    schema : pyspark.sql.types.StructType
        What was declared.
    of : str
        The variable that it was declared of, for messages.
    """

    def __init__(self, schema: StructType, of: str = "") -> None:
        self.schema, self._of = schema, of
        kinds = [field.dataType for field in schema.fields]
        self._codec = RowCodec(schema, conf=TaskConf(), pickled=True)
        self._fields = [RowCodec(kind, conf=TaskConf(), pickled=True) for kind in kinds]
        self._types = [field.arrow_type for field in self._fields]
        self._kept = tuple(_KEPT.get(type(kind), _Nothing) for kind in kinds)
        self._all_kept = _Nothing not in self._kept
        self._maybe = [
            frozenset((kept, _NONE) if field.nullable else (kept,))
            for kept, field in zip(self._kept, schema.fields, strict=True)
        ]
        self._ranges = [
            (at, 1 << (_BITS[type(kind)] - 1))
            for at, kind in enumerate(kinds)
            if type(kind) in _BITS
        ]
        #: Whether a value may be given out more than once as it is.
        self.shared = all(type(kind) in _UNCHANGEABLE for kind in kinds)
        self._surely_hashed = self.shared and not any(isinstance(k, DoubleType) for k in kinds)

    def written(self, value: Any) -> tuple[Any, ...]:
        """Return what a processor reads again of a `value` that it writes.

        Raises
        ------
        PySparkValueError
            If a field has no value that is declared to have one.
        Exception
            What PySpark raises of values that are no tuples, or too short.
        """
        if type(value) is not tuple:
            value = tuple(map(plain, value))
        types = tuple(map(type, value))
        if types != self._kept:
            value = tuple(map(plain, value))
            if not self._is_kept(tuple(map(type, value))):
                return self._converted(value)
        for at, limit in self._ranges:
            number = value[at]
            if number is not None and not -limit <= number < limit:
                return self._converted(value)
        return value  # type: ignore[no-any-return]

    def _is_kept(self, types: tuple[type, ...]) -> bool:
        if not self._all_kept or len(types) != len(self._maybe):
            return False
        return all(one in maybe for one, maybe in zip(types, self._maybe, strict=True))

    def _converted(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Send a value to Arrow and back, with what Spark does on the way to the JVM."""
        try:
            return self.read(self._columns_of_one(value))[0]
        except PySparkValueError as error:
            # Which value of which variable it does not say.
            error.add_note(f"{value!r}, written to {self._of} of {self.schema.simpleString()}")
            raise

    def _columns_of_one(self, value: tuple[Any, ...]) -> pa.StructArray:
        try:
            return self._codec.to_arrow([value])
        except (pa.ArrowInvalid, OverflowError):
            # A whole number that is too large is cut, as by Java: a field's own codec does so.
            return self.arrow([value])

    def read(self, values: pa.StructArray) -> list[tuple[Any, ...]]:
        """Tuples of the rows of an array."""
        columns = values.flatten()
        if not columns:
            return [()] * len(values)
        lists = [
            codec.to_lists([column])[0] for codec, column in zip(self._fields, columns, strict=True)
        ]
        return list(zip(*lists, strict=True))

    def arrow(self, values: Sequence[tuple[Any, ...]]) -> pa.StructArray:
        """Array of values that `written` returned."""
        if not values:
            return pa.array([], pa.struct(list(zip(self.schema.names, self._types, strict=True))))
        columns = list(zip(*values, strict=True))
        arrays = [codec.to_arrow(list(c)) for codec, c in zip(self._fields, columns, strict=True)]
        return pa.StructArray.from_arrays(arrays, self.schema.names)

    def given(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a value as it is handed out: changing it in place changes no state."""
        return value if self.shared else copy.deepcopy(value)

    def hashed(self, key: tuple[Any, ...]) -> Any:
        """Return what stands for a key in a dictionary."""
        return key if self._surely_hashed else _hashable(key)


class _Nothing:
    """Type of no value."""


def _hashable(value: Any) -> Any:
    if isinstance(value, float) and value != value:  # noqa: PLR0124  # what a NaN is known by
        return _NAN
    if isinstance(value, tuple | list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return frozenset((_hashable(key), _hashable(item)) for key, item in value.items())
    return bytes(value) if isinstance(value, bytearray) else value


def row_class(names: Sequence[str]) -> type[Row]:
    """Return a class of PySpark's Rows with `names`, whose fields are fast to read.

    Fields are descriptors of the class, not looked up by name; of two with one name the first is
    read, as of any Row. What a name means to any Row (``count``, ``index``) it goes on meaning.
    ``tuple.__new__`` makes Rows of it.
    """
    fields: dict[str, Any] = {
        name: getter
        for name, getter in reversed(list(zip(names, _getters(len(names)), strict=True)))
        if not hasattr(Row, name) and not name.startswith("__")
    }
    # Written by PySpark on each of its own.
    fields["__fields__"] = list(names)
    fields["__slots__"] = ()
    return type("Row", (Row,), fields)


def row_factory(names: Sequence[str]) -> Callable[[Any], Any]:
    """Return what makes PySpark's Rows with `names` of tuples."""
    return partial(tuple.__new__, row_class(names))


def _getters(count: int) -> list[Any]:
    """Descriptors that read the places of any tuple in C, past ``Row.__getitem__``."""
    names = [f"at{place}" for place in range(count)]
    # The class must outlive the loop: what is left of one that was collected has no fields.
    make: Any = namedtuple  # noqa: PYI024  # untyped
    places = make("places", names)
    return [vars(places)[name] for name in names]
