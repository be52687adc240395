"""Checks of what a user's vectorised function returned, with Spark's own errors."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def wrong_type(expected: str, result: Any, prefix: str = "") -> Exception:
    """Error for a result that is of no type Spark takes."""
    from pyspark.errors import PySparkTypeError

    actual = f"{prefix}{type(result).__name__}"
    return PySparkTypeError(
        errorClass="UDF_RETURN_TYPE", messageParameters={"expected": expected, "actual": actual}
    )


def check_length(result: Any, rows: int) -> Any:
    """Return `result` if it has `rows` rows.

    Raises
    ------
    PySparkRuntimeError
        If it has not.
    """
    if len(result) != rows:
        raise wrong_length(len(result), rows)
    return result


def wrong_length(returned: int, rows: int) -> Exception:
    """Error for a result that has another number of rows than its input."""
    from pyspark.errors import PySparkRuntimeError

    # Spelled out: not every version that we run on has this condition.
    message = (
        f"[RESULT_ROWS_MISMATCH] The number of output rows ({returned}) must match the number of "
        f"input rows ({rows})."
    )
    return PySparkRuntimeError(message)


def check_ahead(returned: int, given: int) -> None:
    """Refuse more rows of an iterator function than it was given so far.

    Raises
    ------
    PySparkRuntimeError
        If there are.
    """
    if returned <= given:
        return
    from pyspark.errors import PySparkRuntimeError

    message = (
        "[OUTPUT_EXCEEDS_INPUT_ROWS] The number of output rows must not exceed the number of input "
        "rows."
    )
    raise PySparkRuntimeError(message)


def conform(result: Any, arrow_type: pa.DataType, rows: int) -> pa.Array:
    """Array of the declared type and length that an Arrow function returned.

    Raises
    ------
    PySparkTypeError
        If it returned something other than an Arrow array.
    PySparkRuntimeError
        If it has another number of rows than the input, or a type that cannot be cast.
    """
    from pyspark.errors import PySparkRuntimeError

    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if not isinstance(result, pa.Array):
        raise wrong_type("pyarrow.Array", result)
    if result.type != arrow_type:
        try:
            result = result.cast(arrow_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as reason:
            message = (
                "[RESULT_COLUMN_TYPES_MISMATCH] Column types of the returned data do not match "
                f"specified schema. Mismatch: column '_0' (expected {arrow_type}, actual "
                f"{result.type})."
            )
            raise PySparkRuntimeError(message) from reason
    return check_length(result, rows)
