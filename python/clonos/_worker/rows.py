"""Arrow columns to Python values and back, the way Spark's own Arrow-optimised UDF does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import DataType

Converter = Callable[[Any], Any]


class RowCodec:
    """Converts the columns of one UDF; built once per task.

    Parameters
    ----------
    return_type : pyspark.sql.types.DataType
        What the function returns, per row.
    """

    def __init__(self, return_type: DataType) -> None:
        from pyspark.sql.conversion import LocalDataToArrowConversion

        self.arrow_type: pa.DataType = to_arrow_type(return_type, timezone="UTC")
        self._to_arrow: Converter | None = LocalDataToArrowConversion._create_converter(
            return_type, none_on_identity=True
        )
        self._to_python: dict[pa.DataType, Converter | None] = {}

    def to_lists(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Python values of each column."""
        return [self._to_list(column) for column in columns]

    def _to_list(self, column: pa.Array) -> list[Any]:
        kind = column.type
        if kind not in self._to_python:
            from pyspark.sql.conversion import ArrowTableToRowsConversion

            self._to_python[kind] = ArrowTableToRowsConversion._create_converter(
                from_arrow_type(kind), none_on_identity=True
            )
        convert = self._to_python[kind]
        values: list[Any] = column.to_pylist()
        return values if convert is None else [convert(value) for value in values]

    def to_arrow(self, results: list[Any]) -> pa.Array:
        """Array of the declared type, with Spark's own coercions.

        Raises
        ------
        pyarrow.ArrowInvalid
            If a result does not fit the declared type.
        """
        if self._to_arrow is not None:
            convert = self._to_arrow
            results = [convert(result) for result in results]
        try:
            return pa.array(results, type=self.arrow_type)
        except pa.lib.ArrowInvalid:
            return pa.array(results).cast(self.arrow_type, safe=True)
