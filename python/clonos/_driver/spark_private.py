"""Every private name of Spark's that the driver's side uses, and the versions it was seen in.

========================================================= =============
name                                                      seen in
========================================================= =============
``SparkSession._jsparkSession``                           4.1, 4.2, 4.3
``RuntimeConf._jconf.contains``                           4.1, 4.2, 4.3
``SparkContext._jsc``, which is ``None`` once stopped     4.1, 4.2, 4.3
``SparkContext._jsc.sc().dagScheduler().stageIdToStage``  4.1, 4.2, 4.3
``sharedState().statusStore().execution``                 4.1, 4.2, 4.3
``SparkContext._jsc.sc().dagScheduler().activeJobs``      4.3
``StreamingQueryWrapper.streamingQuery`` and its class    4.3
========================================================= =============
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clonos._worker.place import EXECUTION_PROPERTY

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def is_classic(spark: SparkSession) -> bool:
    """Whether `spark` has a JVM in reach, as a Spark Connect session has not."""
    return hasattr(spark, "_jsparkSession")


def is_running(spark: SparkSession) -> bool:
    """Whether nobody has stopped `spark`, nor another session of its application."""
    return spark.sparkContext._jsc is not None


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


def running_stages(context: SparkContext, stages: set[int]) -> set[int]:
    """Those of `stages` that some job still needs."""
    known: Any = context._jsc.sc().dagScheduler().stageIdToStage()
    return {stage for stage in stages if known.contains(stage)}


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
