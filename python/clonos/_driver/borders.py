"""By what the rows of a function are cut into the tasks of a stage, as Spark runs it.

Private names of Spark, seen in 4.1, 4.2 and 4.3: what `Cuts.java` and `Borders.java` import, and
what the latter finds in the closures of a shuffle: its ``Partitioning``, and
``RangePartitioner.rangeBounds``; and what `Sources.java` finds in RDDs: ``PythonRDD.func``,
``ParallelCollectionPartition.values``.
"""

from __future__ import annotations

import functools
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
USES = ("Columns", "Functions", "Sources", "Choice", "Order", "Sides", "Borders")
# As `Cuts.java` has it.
OVER = "over"
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

    @functools.cache
    def cuts() -> Any:
        return compiled.made(spark, "Cuts", stages, identities, uses=USES)

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

    def asked(stage: int, token: str, execution: int | None, root: int | None, met: Any) -> Any:
        numbers = [-1 if number is None else number for number in (execution, root)]
        found = cuts().of(stage, token, *numbers, met)
        if found != OVER:
            return found
        return cuts().of(stage, token, *plans_of(execution), analyzed(root), met)

    def made_known(unknown: dict[str, Any]) -> None:
        if identities.size() > _FUNCTIONS_MAX:
            identities.clear()
        for digest, function in unknown.items():
            command = functions.pickled(function, byte)
            identities.put(digest, functions.identity(function, command))

    def of_use(
        stage: int, token: int, execution: int | None, root: int | None, run: int
    ) -> Cut | None:
        nonlocal failed
        try:
            use = stage, f"{token:016x}", execution, root, runs.met(run, root)
            found = asked(*use)
            while found is not None and not isinstance(found, str):
                made_known(dict(found))
                found = asked(*use)
            if found is None:
                return None
            borders, *side = map(int, found.split())
            return borders % 2**64, (side[0], side[1]) if side else None
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
