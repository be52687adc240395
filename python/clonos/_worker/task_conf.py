"""Spark's settings that decide how values are converted, as the current task sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

SAFE_CAST = "spark.sql.execution.pandas.convertToArrowArraySafely"
LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
BINARY_AS_BYTES = "spark.sql.execution.pyspark.binaryAsBytes"
INT_TO_DECIMAL = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
INT_EXTENSION = "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"
BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
TIME_ZONE = "spark.sql.session.timeZone"


# Field of `TaskConf` that each switch sets.
SWITCHES = {
    SAFE_CAST: "safe_cast",
    LARGE_TYPES: "large_types",
    BINARY_AS_BYTES: "binary_as_bytes",
    INT_TO_DECIMAL: "int_to_decimal",
    INT_EXTENSION: "int_extension",
    BY_NAME: "by_name",
}


@dataclass(frozen=True, slots=True)
class TaskConf:
    """What Spark's own workers are told of these settings.

    Spark's defaults differ between its versions, so they are read where a function is used.
    """

    timezone: str = "UTC"
    safe_cast: bool = False
    large_types: bool = False
    binary_as_bytes: bool = True
    int_to_decimal: bool = False
    int_extension: bool = False
    by_name: bool = True

    def changed(self, setting: Callable[[str], str | None]) -> TaskConf:
        """Return these settings with those that `setting` has a value for."""
        values: dict[str, Any] = {}
        for name, field in SWITCHES.items():
            value = setting(name)
            if value is not None:
                values[field] = value.lower() == "true"
        zone = setting(TIME_ZONE)
        if zone:
            values["timezone"] = zone
        return replace(self, **values)


DEFAULTS = TaskConf()


def current_conf(of_session: TaskConf) -> TaskConf:
    """Return the settings of the task that this process runs.

    Spark sends what was set in a session along with every task of its queries.

    Parameters
    ----------
    of_session : TaskConf
        What is so where nobody has set anything.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    return of_session if context is None else of_session.changed(context.getLocalProperty)
