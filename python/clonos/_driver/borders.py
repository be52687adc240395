"""By what the rows of a function are cut into the tasks of a stage, as Spark runs it.

Private names of Spark, seen in 4.1, 4.2 and 4.3: what `Borders.java` imports and finds in the
closures of a shuffle: its ``Partitioning``, and ``RangePartitioner.rangeBounds``; and what
`Sources.java` finds in RDDs: ``PythonRDD.func``, ``ParallelCollectionPartition.values``.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clonos._driver import compiled, functions, spark_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Borders by a stage's number, a use's token, an execution with its root, where there is one, and
# which run of an epoch it is in, or 0. With them, where the use stands in one side of a union, the
# first task of that side and how many there are.
Cut = tuple[int, tuple[int, int] | None]
Borders = Callable[[int, int, int | None, int | None, int], Cut | None]
_log = logging.getLogger("clonos")
USES = ("Columns", "Functions", "Sources", "Choice", "Order", "Sides")
# Runs of which is remembered what they met, and functions of which is remembered what they are.
_RUNS_MAX, _FUNCTIONS_MAX = 64, 4_096


class _Runs:
    """What `Sources.java` numbers, by runs of epochs: of a micro-batch, that of its execution."""

    def __init__(self, jvm: Any) -> None:
        self._made = jvm.java.util.HashMap
        self._known: OrderedDict[tuple[int, int | None], Any] = OrderedDict()
        self._turn = threading.Lock()

    def met(self, run: int, root: int | None) -> Any:
        """What was met in a run so far."""
        key = run, None if run else root
        with self._turn:
            if key not in self._known:
                self._known[key] = self._made()
            if len(self._known) > _RUNS_MAX:
                self._known.popitem(last=False)
            return self._known[key]


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
    runs = _Runs(context._jvm)
    # What `Functions.java` knows.
    identities = context._jvm.java.util.concurrent.ConcurrentHashMap()
    byte = context._jvm.scala.reflect.ClassTag.Byte()

    def plans_of(execution: int | None) -> list[Any]:
        if execution is None:
            return [None] * 3
        running = query(execution)
        if running is not None:
            return [running.analyzed(), running.optimizedPlan(), running.executedPlan()]
        over = ended(execution)
        return [over.analyzed(), over.optimizedPlan(), over.order()] if over else [None] * 3

    def analyzed(execution: int | None) -> Any:
        # No more: of a command that runs, its thread holds the rest.
        found = None if execution is None else query(execution) or ended(execution)
        return None if found is None else found.analyzed()

    def made(*arguments: Any) -> Any:
        described = compiled.made(spark, "Borders", *arguments, uses=USES)
        found = described.unknown()
        # Not as py4j goes through a map, which ends with an exception of Java's, for some
        # milliseconds in each query.
        if found.isEmpty():
            return described
        unknown = dict(found)
        if identities.size() > _FUNCTIONS_MAX:
            identities.clear()
        for digest, function in unknown.items():
            command = functions.pickled(function, byte)
            identities.put(digest, functions.identity(function, command))
        return compiled.made(spark, "Borders", *arguments, uses=USES)

    def of_use(
        stage: int, token: int, execution: int | None, root: int | None, run: int
    ) -> Cut | None:
        nonlocal failed
        try:
            found = stages.get(stage)
            if not found.isDefined():
                return None
            arguments = (found.get().rdd(), f"{token:016x}", *plans_of(execution), analyzed(root))
            described = made(*arguments, identities, runs.met(run, root))
            first = described.side()
            side = None if first is None else (int(first[0]), int(first[1]))
            return int(described.hash()) % 2**64, side
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
