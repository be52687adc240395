"""Arrow's types of Spark's, and back.

Private names of Spark, and how they differ: ``to_arrow_type`` and ``to_arrow_schema`` of
``pyspark.sql.pandas.types`` take the time zone of timestamps since 4.2 and give UTC before;
since then ``from_arrow_type`` and ``from_arrow_schema`` keep timestamps without a zone so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clonos._versions import spark_version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

UTC = "UTC"


def arrow_type(spark_type: DataType, timezone: str = UTC, large: bool = False) -> pa.DataType:
    """The type of columns of `spark_type`.

    Parameters
    ----------
    spark_type : DataType
        Any that Arrow has a type for.
    timezone : str
        Of timestamps; Spark before 4.2 has all of them in UTC.
    large : bool
        Whether text and bytes have offsets of 64 bits.

    Raises
    ------
    TypeError
        If Arrow has no such type; PySpark's own error, which is one of these.
    """
    from pyspark.sql.pandas import types

    options = _zoned(timezone)
    found: pa.DataType = types.to_arrow_type(spark_type, prefers_large_types=large, **options)
    return found


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of batches of `schema`, timestamps in UTC."""
    from pyspark.sql.pandas import types

    found: pa.Schema = types.to_arrow_schema(schema, **_zoned(UTC))
    return found


def spark_type(found: pa.DataType) -> DataType:
    """Spark's type of columns of the type `found`."""
    from pyspark.sql.pandas import types

    return types.from_arrow_type(found, prefer_timestamp_ntz=True)


def spark_schema(found: pa.Schema) -> StructType:
    """Spark's schema of batches of `found`."""
    from pyspark.sql.pandas import types

    return types.from_arrow_schema(found, prefer_timestamp_ntz=True)


def _zoned(timezone: str) -> dict[str, Any]:
    return {"timezone": timezone} if spark_version() >= (4, 2) else {}
