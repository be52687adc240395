"""By what the rows of a function are cut into the tasks of a stage, as Spark runs it.

Private names of Spark, seen in 4.1, 4.2 and 4.3: what `Borders.java` imports and finds in the
closures of a shuffle: its ``Partitioning``, and ``RangePartitioner.rangeBounds``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clonos._driver import compiled, spark_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Borders by a stage's number, a use's token, and an execution with its root, where there is one.
Borders = Callable[[int, int, int | None, int | None], int | None]
_log = logging.getLogger("clonos")
USES = ("Changing", "Columns", "Choice", "Order")


def stage_borders(spark: SparkSession, ended: Callable[[int], Any]) -> Borders:
    """Return what tells by which borders the rows of a use are cut into the tasks of a stage.

    The borders are hashes, together 64 bits, that are the same in each process; `Borders.java` says
    what is in which bits. They are ``None`` where this Spark cannot tell, or has forgotten the
    stage. `ended` returns what is left of a query whose execution is over, if anything is.
    """
    context: Any = spark.sparkContext
    stages: Any = context._jsc.sc().dagScheduler().stageIdToStage()
    query: Any = context._jvm.org.apache.spark.sql.execution.SQLExecution.getQueryExecution
    failed = False

    def query_of(execution: int | None) -> Any:
        return None if execution is None else query(execution) or ended(execution)

    def of_use(stage: int, token: int, execution: int | None, root: int | None) -> int | None:
        nonlocal failed
        try:
            found = stages.get(stage)
            if not found.isDefined():
                return None
            own, whole = query_of(execution), query_of(root)
            plans = [
                None if own is None else own.analyzed(),
                None if own is None else own.optimizedPlan(),
                None if own is None else own.executedPlan(),
                None if whole is None else whole.analyzed(),
            ]
            arguments = (found.get().rdd(), f"{token:016x}", *plans)
            described = compiled.made(spark, "Borders", *arguments, uses=USES)
            return int(described.hash()) % 2**64
        except Exception as error:  # noqa: BLE001, whatever another Spark has otherwise
            if not failed and spark_private.is_running(spark):
                failed = True
                _log.warning(
                    "this Spark does not tell by what it cuts the rows of a stage into tasks: rows "
                    "are taken to be where they were whenever they are cut into as many (%s)",
                    error,
                )
            return None

    return of_use
