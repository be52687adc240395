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
USES = ("Columns", "Choice", "Order")


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

    def plans_of(execution: int | None) -> list[Any]:
        if execution is None:
            return [None] * 3
        running = query(execution)
        if running is not None:
            return [running.analyzed(), running.optimizedPlan(), running.executedPlan()]
        over = ended(execution)
        return [over.analyzed(), over.optimizedPlan(), over.inOrder()] if over else [None] * 3

    def analyzed(execution: int | None) -> Any:
        # No more: of a command that runs, its thread holds the rest.
        found = None if execution is None else query(execution) or ended(execution)
        return None if found is None else found.analyzed()

    def of_use(stage: int, token: int, execution: int | None, root: int | None) -> int | None:
        nonlocal failed
        try:
            found = stages.get(stage)
            if not found.isDefined():
                return None
            arguments = (found.get().rdd(), f"{token:016x}", *plans_of(execution), analyzed(root))
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
