"""Where a causal function is called: by a program, in a task, or where there is no Spark."""

from __future__ import annotations

import sys


def in_task() -> bool:
    """Whether this process runs a task of Spark's."""
    # Where PySpark was never imported there is no task, and it need not be installed.
    if "pyspark" not in sys.modules:
        return False
    from pyspark import TaskContext

    return TaskContext.get() is not None


def on_server() -> bool:
    """Whether this process runs what a client of Spark Connect has handed to a stream."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.sql.connect.streaming.worker")


def no_session() -> bool:
    """Whether there is no Spark for which a column could be made."""
    if "pyspark.sql" not in sys.modules:
        return True
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkContext._active_spark_context is None and SparkSession.getActiveSession() is None
