"""Arrow columns to Python values and back, the way Spark's own UDFs of rows do it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    UserDefinedType,
    _parse_datatype_json_value,
)

from clonos import _arrow_types, _core
from clonos._worker.pickled import pickled_converter, plain_types, without_surrogates
from clonos._worker.task_conf import TaskConf

Converter = Callable[[Any], Any]
# So many small objects are less than an arena of 256 KiB, the smallest that Python has.
SPARED_EACH = 512


class RowCodec:
    """Converts the columns of one UDF; built once per task.

    Parameters
    ----------
    return_type : pyspark.sql.types.DataType
        What the function returns, per row.
    types : sequence of str or None
        Spark types, as JSON, of the arguments that Arrow does not tell all of.
    conf : TaskConf
        Spark's settings.
    pickled : bool
        Treat results that are not of the declared type as Spark's pickled UDFs do (a float for an
        int is null), and not as its Arrow-optimised ones (an error, or a cast).
    """

    def __init__(
        self,
        return_type: DataType,
        types: Sequence[str | None] = (),
        conf: TaskConf | None = None,
        pickled: bool = False,
    ) -> None:
        from pyspark.sql.conversion import LocalDataToArrowConversion

        conf = TaskConf() if conf is None else conf
        self.arrow_type: pa.DataType = _arrow_types.arrow_type(return_type, large=conf.large_types)
        self._conf, self._pickled = conf, pickled
        self._types = types
        self._plain = plain_types(return_type) or frozenset()
        self._plain_kind = str(self.arrow_type) if self._plain else ""
        self._lenient = pickled_converter(return_type) if pickled else None
        options = {"int_to_decimal_coercion_enabled": True} if conf.int_to_decimal else {}
        self._to_arrow: Converter | None = LocalDataToArrowConversion._create_converter(
            return_type, none_on_identity=True, **options
        )
        self._converts = self._to_arrow is not None or self._lenient is not None
        self._to_python: dict[tuple[int, pa.DataType], Converter | None] = {}
        self._spared: dict[str | int, list[Any]] = {}

    def to_lists(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Python values of each column."""
        return [self._to_list(index, column) for index, column in enumerate(columns)]

    def _to_list(self, index: int, column: pa.Array) -> list[Any]:
        kind = (index, column.type)
        if kind not in self._to_python:
            self._to_python[kind] = self._converter(index, column.type)
        convert = self._to_python[kind]
        values = to_pylist(column)
        self._spare(index, values)
        return values if convert is None else [convert(value) for value in values]

    def _spare(self, key: str | int, values: list[Any]) -> None:
        """Have some values of a large batch live until the next one has its own.

        Python gives memory of small objects back to the system an arena at a time, when all in it
        have gone. That is each batch at its end, and the next one would have the same memory mapped
        and cleared again, which takes a tenth of the time of a short function of strings.
        """
        self._spared[key] = values[::SPARED_EACH] if len(values) > 2 * SPARED_EACH else []

    def _converter(self, index: int, arrow_type: pa.DataType) -> Converter | None:
        from pyspark.sql.conversion import ArrowTableToRowsConversion

        known = self._types[index] if index < len(self._types) else None
        if known is None:
            spark_type = with_vectors(_arrow_types.spark_type(_without_intervals(arrow_type)))
        else:
            spark_type = _parse_datatype_json_value(json.loads(known))
        converter: Converter | None = ArrowTableToRowsConversion._create_converter(
            spark_type, none_on_identity=True, binary_as_bytes=self._conf.binary_as_bytes
        )
        return converter

    def to_arrow(self, results: list[Any]) -> pa.Array:
        """Array of the declared type, with Spark's own coercions.

        Raises
        ------
        pyarrow.ArrowInvalid
            If a result does not fit the declared type.
        """
        self._spare("results", results)
        # Most results are of the declared type, in which no coercion has a say.
        if (array := _core.plain_array(results, self._plain_kind)) is not None:
            return array
        if self._converts and not self._plain.issuperset(map(type, results)):
            results = self._converted(results)
        try:
            return pa.array(results, type=self.arrow_type)
        except UnicodeEncodeError:
            if not self._pickled:
                raise
            return pa.array(without_surrogates(results), type=self.arrow_type)
        except (pa.lib.ArrowInvalid, OverflowError):
            if self._lenient is not None:
                # A whole number that is too large: Spark's pickled UDFs cut it, as Java does.
                return self._cut(results)
            return pa.array(results).cast(self.arrow_type, safe=self._conf.safe_cast)

    def _converted(self, results: list[Any]) -> list[Any]:
        if self._lenient is not None:
            lenient = self._lenient
            results = [lenient(result) for result in results]
        if self._to_arrow is not None:
            convert = self._to_arrow
            results = [convert(result) for result in results]
        return results

    def _cut(self, results: list[Any]) -> pa.Array:
        if not pa.types.is_integer(self.arrow_type):
            return pa.array(results).cast(self.arrow_type, safe=self._conf.safe_cast)
        longs = pa.array([_as_long(result) for result in results], type=pa.int64())
        return longs.cast(self.arrow_type, safe=False)


def _as_long(value: int | None) -> int | None:
    """A whole number as Java reads a pickled one: what needs more than 64 bits is nothing."""
    return value if value is not None and -(2**63) <= value < 2**63 else None


def to_pylist(column: pa.Array) -> list[Any]:
    """Python values of a column as pyarrow has them, by PySpark's faster way where there is one."""
    from pyspark.sql.conversion import ArrowTableToRowsConversion

    # Spark 4.3 has a faster way for nested columns.
    bulk = getattr(ArrowTableToRowsConversion, "_to_pylist", None)
    values: list[Any] = column.to_pylist() if bulk is None else bulk(column)
    return values


def _without_intervals(kind: pa.DataType) -> pa.DataType:
    """Return `kind` with whole numbers in place of intervals, which Spark does not know here.

    Either is handed over as pyarrow reads it, so they have the same converters.
    """
    if kind == pa.month_day_nano_interval():
        return pa.int64()
    if pa.types.is_map(kind):
        return pa.map_(_without(kind.key_field), _without(kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_without(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_without(field) for field in kind])
    return kind


def _without(field: pa.Field) -> pa.Field:
    return field.with_type(_without_intervals(field.type))


def with_vectors(kind: DataType) -> DataType:
    """Return `kind` with Spark ML's vectors and matrices in place of the structs they are kept as.

    Arrow carries a user-defined type as what it is kept as, and a column that is named by a string
    has no type yet when a function is called with it. These two are told by their fields.
    """
    if isinstance(kind, ArrayType):
        return ArrayType(with_vectors(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        key, value = with_vectors(kind.keyType), with_vectors(kind.valueType)
        return MapType(key, value, kind.valueContainsNull)
    if not isinstance(kind, StructType):
        return kind
    if kind.names[:1] == ["type"] and len(kind.names) in _ML_FIELDS:
        from pyspark.ml.linalg import MatrixUDT, VectorUDT

        for known in (VectorUDT(), MatrixUDT()):
            if _looks_like(kind, known):
                return known
    fields = [StructField(f.name, with_vectors(f.dataType), f.nullable) for f in kind.fields]
    return StructType(fields)


# Fields of a vector and of a matrix.
_ML_FIELDS = (4, 7)


def _looks_like(kind: StructType, known: UserDefinedType) -> bool:
    kept: Any = known.sqlType()
    return [(f.name, f.dataType.simpleString()) for f in kind.fields] == [
        (f.name, f.dataType.simpleString()) for f in kept.fields
    ]
