"""Every private name of Spark's that the driver's side uses, and the versions it was seen in.

========================================================= =============
name                                                      seen in
========================================================= =============
``SparkSession._jsparkSession``                           4.1, 4.2, 4.3
``RuntimeConf._jconf.contains``                           4.1, 4.2, 4.3
``SparkContext._jsc.sc().dagScheduler().stageIdToStage``  4.1, 4.2, 4.3
``sharedState().statusStore().execution``                 4.1, 4.2, 4.3
``SparkContext._jsc.sc().dagScheduler().activeJobs``      4.3
``SQLExecution.getQueryExecution``, ``TreePattern``       4.3
``PythonUDF.func().command()``                            4.3
``StreamingQueryWrapper.streamingQuery`` and its class    4.3
========================================================= =============
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from clonos._worker.place import EXECUTION_PROPERTY

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def is_classic(spark: SparkSession) -> bool:
    """Whether `spark` has a JVM in reach, as a Spark Connect session has not."""
    return hasattr(spark, "_jsparkSession")


def is_set(spark: SparkSession, setting: str) -> bool:
    """Whether somebody has given `setting` a value."""
    jconf: Any = spark.conf._jconf
    return bool(jconf.contains(setting))


def stage_tasks(context: SparkContext) -> Callable[[int], int | None]:
    """Return what tells how many partitions a stage has.

    Not the status tracker's number of tasks: that counts those of a stage's last attempt, which
    are only the missing ones after a failure.
    """
    stages: Any = context._jsc.sc().dagScheduler().stageIdToStage()

    def of_stage(stage: int) -> int | None:
        found = stages.get(stage)
        return int(found.get().numPartitions()) if found.isDefined() else None

    return of_stage


def execution_ended(spark: SparkSession, execution: int) -> bool:
    """Whether a SQL execution is over."""
    jspark: Any = spark._jsparkSession
    found = jspark.sharedState().statusStore().execution(execution)
    return bool(found.isDefined() and found.get().completionTime().isDefined())


def commits_late(spark: SparkSession, query: str) -> bool:
    """Whether a streaming query commits a batch when the next one may have begun."""
    jspark: Any = spark._jsparkSession
    found = jspark.streams().get(query)
    kind = "" if found is None else found.streamingQuery().getClass().getSimpleName()
    return kind == "AsyncProgressTrackingMicroBatchExecution"


def running_executions(context: SparkContext) -> set[int]:
    """Numbers of the SQL executions that have jobs under way.

    One that is over may have: ``toLocalIterator`` ends its execution before its first job.
    """
    jobs: Any = context._jsc.sc().dagScheduler().activeJobs().iterator()
    found = set()
    while jobs.hasNext():
        number = jobs.next().properties().getProperty(EXECUTION_PROPERTY)
        if number is not None:
            found.add(int(number))
    return found


class PlannedFunction:
    """A Python function in a plan.

    `over` is a hash of its arguments and of the plan below it, `tables` of the tables in that plan;
    both are of use in this process only.
    """

    def __init__(self, java: _Java, function: Any, over: int, tables: int) -> None:
        self._java = java
        self.over = over
        self.tables = tables
        self._function = function
        # Equal for two mentions of one function, and of any length of life.
        self.identity = int(java.identity(function))

    def pickled(self) -> bytes | None:
        """Return what Spark sends to a worker; ``None`` if it is a broadcast and not at hand."""
        command = self._function.command()
        if isinstance(command, bytes):
            return command
        return bytes(command.toArray(self._java.byte))


class _Java:
    """What is looked up in the JVM once: each step of a name is a round trip."""

    def __init__(self, jvm: Any) -> None:
        self.identity = jvm.java.lang.System.identityHashCode
        self.byte = jvm.scala.reflect.ClassTag.Byte()
        patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._function, self._generator = patterns.PYTHON_UDF(), patterns.GENERATOR()
        self.execution = jvm.org.apache.spark.sql.execution.SQLExecution.getQueryExecution

    def may_hold(self, node: Any) -> bool:
        """Whether a plan or an expression may have a Python function in it, or a table function."""
        return bool(node.containsPattern(self._function) or node.containsPattern(self._generator))


class Plans:
    """Finds Python functions in the plans of SQL executions."""

    def __init__(self, spark: SparkSession) -> None:
        self._java = _Java(spark._jvm)

    def functions(self, execution: int) -> Iterator[PlannedFunction]:
        """Functions in the order in which the analysed plan has them, depth first."""
        query = self._java.execution(execution)
        if query is not None:
            plan = query.analyzed()
            yield from self._of_plan(plan)
            if not self._java.may_hold(plan):
                # A command that writes has what it writes as an inner child.
                for inner in _each(plan.innerChildren()):
                    yield from self._of_plan(inner)

    def _of_plan(self, plan: Any) -> Iterator[PlannedFunction]:
        if self._java.may_hold(plan):
            for expression in _each(plan.expressions()):
                yield from self._of_expression(expression, plan)
            for child in _each(plan.children()):
                yield from self._of_plan(child)

    def _of_expression(self, expression: Any, plan: Any) -> Iterator[PlannedFunction]:
        if not self._java.may_hold(expression):
            return
        name = _name(expression)
        if name in {"PythonUDF", "PythonUDAF", "PythonUDTF"}:
            yield PlannedFunction(self._java, expression.func(), *_over(expression, plan))
        for child in _each(expression.children()):
            yield from self._of_expression(child, plan)
        if name in _SUBQUERIES:
            yield from self._of_plan(expression.plan())


_SUBQUERIES = {"ScalarSubquery", "ListQuery", "Exists", "LateralSubquery"}


def _over(function: Any, plan: Any) -> tuple[int, int]:
    arguments = [str(argument.sql()) for argument in _each(function.children())]
    # The text tells queries over one table apart, and the hashes tables of one shape.
    below = [str(child.canonicalized().toString()) for child in _each(plan.children())]
    tables = [int(leaf.semanticHash()) for leaf in _each(plan.collectLeaves())]
    return hash((*arguments, *below, *tables)) % 2**64, hash(tuple(tables)) % 2**64


def _name(node: Any) -> str:
    return str(node.nodeName())


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))
