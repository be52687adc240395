"""Spark's settings that decide how values are converted, as the current task sees them."""

from __future__ import annotations

from dataclasses import dataclass

SAFE_CAST = "spark.sql.execution.pandas.convertToArrowArraySafely"
LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
BINARY_AS_BYTES = "spark.sql.execution.pyspark.binaryAsBytes"
INT_TO_DECIMAL = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
INT_EXTENSION = "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"
BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
TIME_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True, slots=True)
class TaskConf:
    """What Spark's own workers are told of these settings, with Spark's defaults."""

    timezone: str = "UTC"
    safe_cast: bool = False
    large_types: bool = False
    binary_as_bytes: bool = True
    int_to_decimal: bool = False
    int_extension: bool = False
    by_name: bool = True


def current_conf(timezone: str) -> TaskConf:
    """Return the settings of the task that this process runs.

    Spark sends what was set in a session along with every task of its queries.

    Parameters
    ----------
    timezone : str
        Time zone of the session where nobody has set one.
    """
    from pyspark import TaskContext

    context = TaskContext.get()

    def of(setting: str, default: bool) -> bool:
        value = None if context is None else context.getLocalProperty(setting)
        return default if value is None else value.lower() == "true"

    zone = None if context is None else context.getLocalProperty(TIME_ZONE)
    return TaskConf(
        timezone=zone or timezone,
        safe_cast=of(SAFE_CAST, False),
        large_types=of(LARGE_TYPES, False),
        binary_as_bytes=of(BINARY_AS_BYTES, True),
        int_to_decimal=of(INT_TO_DECIMAL, False),
        int_extension=of(INT_EXTENSION, False),
        by_name=of(BY_NAME, True),
    )
