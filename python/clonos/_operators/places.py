"""Where a causal function is called: by a program, in a task, or where there is no Spark."""

from __future__ import annotations

import sys
import warnings

from clonos._attached import on_server
from clonos._operators.columns import active_session
from clonos.errors import ConfigError, NotRecordedWarning


def in_task() -> bool:
    """Whether this process runs a task of Spark's."""
    # Where PySpark was never imported there is no task, and it need not be installed.
    if "pyspark" not in sys.modules:
        return False
    from pyspark import TaskContext

    return TaskContext.get() is not None


def warn_unrecorded(what: str, stacklevel: int) -> None:
    """Say that no session is attached which would record `what`.

    Raises
    ------
    ConfigError
        Where there can be none: on a server of Spark Connect.
    """
    if on_server():
        message = (
            f"{what} is used in a foreachBatch function over Spark Connect, which runs in a "
            "process of the server's: wrap it, foreachBatch(session.foreach_batch(fn))"
        )
        raise ConfigError(message, "CONFIG")
    message = f"{what} is not recorded: call clonos.attach(spark) first"
    warnings.warn(message, NotRecordedWarning, stacklevel=stacklevel + 1)


def no_session() -> bool:
    """Whether there is no Spark for which a column could be made."""
    if "pyspark.sql" not in sys.modules:
        return True
    from pyspark import SparkContext

    return SparkContext._active_spark_context is None and active_session() is None
