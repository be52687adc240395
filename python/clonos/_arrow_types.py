"""Arrow's types of Spark's, and back.

Private names of Spark, and how they differ: ``to_arrow_type`` and ``to_arrow_schema`` of
``pyspark.sql.pandas.types`` take the time zone of timestamps since 4.2 and give UTC before;
since then ``from_arrow_type`` and ``from_arrow_schema`` keep timestamps without a zone so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clonos._versions import spark_version
from clonos.errors import UnsupportedType

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
    UnsupportedType
        If it is void and says that it is never null, as the elements of ``array()``.
    """
    from pyspark.sql.pandas import types

    options = _zoned(timezone)
    try:
        found: pa.DataType = types.to_arrow_type(spark_type, prefers_large_types=large, **options)
    except ValueError as error:
        raise _without_type(spark_type.simpleString(), error) from error
    return found


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of batches of `schema`, timestamps in UTC; errors as of `arrow_type`."""
    from pyspark.sql.pandas import types

    try:
        found: pa.Schema = types.to_arrow_schema(schema, **_zoned(UTC))
    except ValueError as error:
        raise _without_type(schema.simpleString(), error) from error
    return found


def spark_type(found: pa.DataType) -> DataType:
    """Spark's type of columns of the type `found`."""
    from pyspark.sql.pandas import types

    return types.from_arrow_type(found, prefer_timestamp_ntz=True)


def spark_schema(found: pa.Schema) -> StructType:
    """Spark's schema of batches of `found`."""
    from pyspark.sql.pandas import types

    return types.from_arrow_schema(found, prefer_timestamp_ntz=True)


def _without_type(shown: str, error: ValueError) -> UnsupportedType:
    message = (
        f"Arrow has no type for {shown}: {error}. Void, such as of the elements of array() or "
        "map(), needs a type: cast(c as array<int>)"
    )
    return UnsupportedType(message, "UNSUPPORTED_TYPE")


def _zoned(timezone: str) -> dict[str, Any]:
    return {"timezone": timezone} if spark_version() >= (4, 2) else {}
