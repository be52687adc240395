"""Which uses of causal functions stand in the plan of a SQL execution, and in which order.

A restarted program makes the same plan, so that order tells its uses apart, whichever task happens
to be first. It is asked for once for each execution that has a use which no log belongs to yet.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from clonos._driver import spark_private
from clonos._uses import Placed, find_mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Operator, code, Python version, token, whether the user named it, and what it is asked over.
PlacedUse = tuple[str, int, str, int, bool, int]
# Python functions whose marks are remembered, by what identifies them in the JVM.
_MARKS_MAX = 10_000


def plan_uses(spark: SparkSession) -> Callable[[int, int], list[PlacedUse] | None]:
    """Return what tells the uses in an execution's plan, in order; ``None`` if it is not known."""
    plans = spark_private.Plans(spark)
    marks: OrderedDict[int, Placed | None] = OrderedDict()

    def mark_of(function: spark_private.PlannedFunction) -> Placed | None:
        if function.identity not in marks:
            pickled = function.pickled()
            marks[function.identity] = None if pickled is None else find_mark(pickled)
            if len(marks) > _MARKS_MAX:
                marks.popitem(last=False)
        return marks[function.identity]

    def uses(executions: list[int]) -> Iterator[Placed]:
        for execution in executions:
            for function in plans.functions(execution):
                placed = mark_of(function)
                if placed is not None:
                    yield placed._replace(over=function.over)

    def of_execution(execution: int, root: int) -> list[PlacedUse] | None:
        # A batch that `foreachBatch` hands out is computed by what is asked of it, so its own plan
        # stands behind each of those.
        found: list[PlacedUse] = []
        with contextlib.suppress(Exception):
            found.extend(uses([execution] if execution == root else [root, execution]))
        return found or None

    return of_execution
