"""Which uses of causal functions stand in the plan of a SQL execution, and in which order.

A restarted program makes the same plan, so that order tells its uses apart, whichever task happens
to be first. It is asked for once for each execution that has a use which no log belongs to yet.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from clonos._driver.spark_plans import Plans
from clonos._uses import Placed, find_mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# See `Placed`.
PlacedUse = tuple[str, int, str, int, bool, int, int, int, int, int]
# Uses in the plan of an execution, and of its root.
PlanUses = Callable[[int, int], list[PlacedUse] | None]
# Executions whose plans are remembered.
_PLANS_MAX = 16


def plan_uses(spark: SparkSession, ended: Callable[[int], Any]) -> PlanUses:
    """Return what tells the uses in an execution's plan, in order; ``None`` if it is not known.

    `ended` is that of `Plans`.
    """
    plans = Plans(spark, ended)
    # The first tasks of a job all ask at once, and a plan does not change.
    known: OrderedDict[tuple[int, int], list[PlacedUse]] = OrderedDict()
    turn = threading.Lock()

    def uses(executions: list[int]) -> Iterator[Placed]:
        for execution in executions:
            for function in plans.functions(execution):
                placed = find_mark(function.pickled)
                if placed is not None:
                    yield placed._replace(
                        over=function.over,
                        tables=function.tables,
                        exact=function.exact,
                        shape=function.shape,
                        data=function.data,
                    )

    def of_execution(execution: int, root: int) -> list[PlacedUse] | None:
        # A batch that `foreachBatch` hands out is computed by what is asked of it, so its own plan
        # stands behind each of those.
        with turn:
            if (execution, root) in known:
                return known[execution, root]
            found: list[PlacedUse] = []
            with contextlib.suppress(Exception):
                # All of a plan, or nothing: a part would be taken for the whole.
                found = list(uses([execution] if execution == root else [root, execution]))
            if found:
                known[execution, root] = found
            if len(known) > _PLANS_MAX:
                known.popitem(last=False)
            return found or None

    return of_execution
