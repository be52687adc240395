"""Arrow columns to pandas and back with Spark's own converters, so the declared type counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from clonos._arrow_types import arrow_type, spark_type
from clonos._worker.results import check_length, wrong_type
from clonos._worker.task_conf import SAFE_CAST, TaskConf

NAME = "_0"


class PandasCodec:
    """Converts the columns of one pandas UDF; built once per task.

    Parameters
    ----------
    return_type : pyspark.sql.types.DataType
        What the function returns, per row.
    conf : TaskConf
        Spark's settings.
    """

    def __init__(self, return_type: DataType, conf: TaskConf) -> None:
        self.arrow_type: pa.DataType = arrow_type(return_type, large=conf.large_types)
        self._struct = isinstance(return_type, StructType)
        self.expected = "pandas.DataFrame" if self._struct else "pandas.Series"
        self._encode = _encoder(return_type, conf)
        self._decode = _decoder(conf)
        self._types: dict[pa.DataType, DataType] = {}

    def to_pandas(self, column: pa.Array, name: str) -> Any:
        """Series of a column, or frame of a struct column."""
        kind = self._types.get(column.type)
        if kind is None:
            kind = self._types[column.type] = spark_type(column.type)
        return self._decode(column, kind, name)

    def to_arrow(self, result: Any, rows: int) -> pa.Array:
        """Array of the declared type of what the function returned for `rows` rows.

        Raises
        ------
        PySparkTypeError
            If it is not a series, or not a frame where a struct is declared.
        PySparkRuntimeError
            If it has another number of rows.
        """
        import pandas as pd

        if not hasattr(result, "__len__"):
            raise wrong_type(self.expected, result)
        check_length(result, rows)
        if self._struct and not isinstance(result, pd.DataFrame):
            message = (
                "Invalid return type. Please make sure that the UDF returns a "
                "pandas.DataFrame when the specified return type is StructType."
            )
            raise ValueError(message)
        array = self._encode(result)
        return array if array.type == self.arrow_type else array.cast(self.arrow_type)

    def check_element(self, result: Any) -> Any:
        """Return what an iterator function yielded, if it is a series (or a frame for a struct).

        Raises
        ------
        PySparkTypeError
            If it is not.
        """
        import pandas as pd

        if not isinstance(result, pd.DataFrame if self._struct else pd.Series):
            raise wrong_type(f"iterator of {self.expected}", result, "iterator of ")
        return result


def _encoder(return_type: DataType, conf: TaskConf) -> Callable[[Any], pa.Array]:
    schema = StructType([StructField(NAME, return_type)])
    try:
        from pyspark.sql.conversion import PandasToArrowConversion
    except ImportError:
        return _encoder_before_spark_43(return_type, conf)

    def encode(result: Any) -> pa.Array:
        return PandasToArrowConversion.convert(
            [result],
            schema,
            timezone=conf.timezone,
            safecheck=conf.safe_cast,
            arrow_cast=True,
            prefers_large_types=conf.large_types,
            assign_cols_by_name=conf.by_name,
            int_to_decimal_coercion_enabled=conf.int_to_decimal,
        ).column(0)

    return encode


def series_of(column: pa.Array, name: str, conf: TaskConf) -> Any:
    """Series of a column, of a struct too, as in the frames that Spark makes of whole batches."""
    decode = _decoder(conf, frames=False)
    return decode(column, spark_type(column.type), name)


def _decoder(conf: TaskConf, *, frames: bool = True) -> Callable[[pa.Array, DataType, str], Any]:
    try:
        from pyspark.sql.conversion import ArrowArrayToPandasConversion

        convert = ArrowArrayToPandasConversion.convert
    except (ImportError, AttributeError):
        return _decoder_before_spark_43(conf, frames=frames)

    def decode(column: pa.Array, kind: DataType, name: str) -> Any:
        return convert(
            column,
            kind,
            ser_name=name,
            timezone=conf.timezone,
            struct_in_pandas="dict",
            ndarray_as_list=False,
            prefer_int_ext_dtype=conf.int_extension,
            df_for_struct=frames,
        )

    return decode


def _encoder_before_spark_43(return_type: DataType, conf: TaskConf) -> Callable[[Any], pa.Array]:
    from pyspark.sql.pandas.types import _create_converter_from_pandas

    def of(declared: DataType) -> Callable[[Any], pa.Array]:
        if isinstance(declared, StructType):
            fields = [of(field.dataType) for field in declared.fields]
            names = declared.names

            def frame(result: Any) -> pa.Array:
                named = conf.by_name and any(isinstance(c, str) for c in result.columns)
                series = [
                    result[name] if named else result.iloc[:, index]
                    for index, name in enumerate(names)
                ]
                arrays = [encode(one) for encode, one in zip(fields, series, strict=True)]
                return pa.StructArray.from_arrays(arrays, names)

            return frame
        convert = _create_converter_from_pandas(
            declared, timezone=conf.timezone, error_on_duplicated_field_names=False
        )
        kind = arrow_type(declared, conf.timezone)

        def one(result: Any) -> pa.Array:
            series = convert(result)
            mask = None if hasattr(series.array, "__arrow_array__") else series.isna()
            try:
                return pa.Array.from_pandas(series, mask=mask, type=kind, safe=conf.safe_cast)
            except pa.lib.ArrowInvalid:
                return _cast(pa.Array.from_pandas(series, mask=mask), kind, conf)

        return one

    return of(return_type)


def _cast(array: pa.Array, kind: pa.DataType, conf: TaskConf) -> pa.Array:
    from pyspark.errors import PySparkValueError

    try:
        return array.cast(kind, safe=conf.safe_cast)
    except pa.lib.ArrowInvalid as reason:
        advice = f"; {SAFE_CAST}=false takes what is left of them" if conf.safe_cast else ""
        failed = f"Failed to convert values of type {array.type} to the declared {kind}"
        message = f"{failed}: {reason}{advice}"
        raise PySparkValueError(message) from reason


def _decoder_before_spark_43(
    conf: TaskConf, *, frames: bool
) -> Callable[[pa.Array, DataType, str], Any]:
    from pyspark.sql.pandas.types import _create_converter_to_pandas

    def decode(column: pa.Array, kind: DataType, name: str) -> Any:
        import pandas as pd

        if frames and isinstance(kind, StructType):
            fields = zip(column.flatten(), kind.fields, strict=True)
            series = [decode(array, field.dataType, field.name) for array, field in fields]
            return pd.concat(series, axis=1)
        convert = _create_converter_to_pandas(
            data_type=kind,
            nullable=True,
            timezone=conf.timezone,
            struct_in_pandas="dict",
            error_on_duplicated_field_names=True,
        )
        options = {"date_as_object": True, "coerce_temporal_nanoseconds": True}
        return convert(column.to_pandas(**options)).rename(name)

    return decode
