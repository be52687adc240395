"""Every private name of Spark's that the driver's side uses, and the versions it was seen in.

========================================================= =============
name                                                      seen in
========================================================= =============
``SparkSession._jsparkSession``                           4.1, 4.2, 4.3
``SparkSession._jsparkSession.sessionUUID``               4.3
``RuntimeConf._jconf.contains``                           4.1, 4.2, 4.3
``SparkContext._jsc``, which is ``None`` once stopped     4.1, 4.2, 4.3
``SparkContext._jsc.sc().dagScheduler().stageIdToStage``  4.1, 4.2, 4.3
``sharedState().statusStore().execution``                 4.1, 4.2, 4.3
``SparkContext._jsc.sc().dagScheduler().activeJobs``      4.3
``SparkContext._jsc.sc().listenerBus().waitUntilEmpty``   4.3
``ShuffleMapStage.shuffleDep``, ``Stage.latestInfo``      4.3
``Stage.rdd``                                             4.1, 4.2, 4.3
``SparkContext._jsc.sc().getExecutorIds``                 4.3
``DAGScheduler``'s field ``mapOutputTracker``             4.3
``MapOutputTrackerMaster.shuffleStatuses``                4.3
``ShuffleStatus.mapStatusesDeleted``                      4.3
``statusStore().stageData``, ``statusStore().job``        4.3
``SharedState.activeStreamingQueries`` and its classes    4.3
``StreamExecution.offsetLog``, ``OffsetSeqMetadata``      4.1, 4.2, 4.3
``OffsetSeq.metadataOpt``, which is ``metadata`` in 4.1   4.2, 4.3
``_create_udf`` of ``sql.udf``, ``sql.pandas.functions``  4.3
``sql.pandas.group_ops.PandasGroupedOpsMixin``            4.3
``StreamExecution.availableOffsets``, ``isActive``        4.3
``committedOffsets``, ``getStartOffsetsOfLatestBatch``    4.3
``StreamExecution.getLatestExecutionContext().batchId``   4.3
``MicroBatchExecution.watermarkTracker``                  4.3
``SparkSession._get_j_spark_session_class``               4.3
``PipelinedRDD._prev_jrdd``, ``Broadcast._jbroadcast``    4.3
``Broadcast._path``                                       4.3
========================================================= =============
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from clonos._versions import spark_version
from clonos._worker.place import EXECUTION_PROPERTY

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast, SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQueryManager

# What makes UDFs of all kinds, looked up at each call in the modules that call it.
MAKER = "_create_udf"
# What ``toLocalIterator`` calls, as the details of its execution have it, whatever that is called.
LOCAL_ITERATOR = ".Dataset.toPythonIterator("
# Shuffles beyond which those that are gone are forgotten.
SHUFFLES_MAX = 4_096
# Stages of which is remembered what Spark was asked of them, once for each.
STAGES_MAX = 64
# Class of the stages that write a shuffle.
SHUFFLE_STAGE = "ShuffleMapStage"
# How long to wait for listeners, in milliseconds.
EVENTS_MS_MAX = 1_000
_known_streams: WeakKeyDictionary[SparkSession, Any] = WeakKeyDictionary()


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


# How many partitions a stage has, whether all were complete once, and whether they write a shuffle.
Stage = tuple[int, bool, bool]


def stages(context: SparkContext) -> Callable[[int], Stage | None]:
    """Return what tells about a stage.

    The number is not the status tracker's, which counts those of a stage's last attempt: only the
    missing ones after a failure.
    """
    known: Any = context._jsc.sc().dagScheduler().stageIdToStage()

    def of_stage(stage: int) -> Stage | None:
        found = known.get(stage)
        if not found.isDefined():
            return None
        now: Any = found.get()
        was_tried = now.latestInfo().attemptNumber() > 0
        was_complete = was_tried and _was_complete(context, stage)
        writes = now.getClass().getSimpleName() == SHUFFLE_STAGE
        return int(now.numPartitions()), was_complete, writes

    return of_stage


def _status_of(context: SparkContext, stage: int) -> list[str]:
    """How the attempts at a stage stand or ended, as far as Spark remembers."""
    jvm: Any = context._jvm
    gateway: Any = context._gateway
    store: Any = context._jsc.sc().statusStore()
    none, quantiles = jvm.java.util.ArrayList(), gateway.new_array(jvm.double, 0)
    attempts = store.stageData(stage, False, none, False, quantiles)
    return [attempts.apply(at).status().toString() for at in range(attempts.size())]


def _was_complete(context: SparkContext, stage: int) -> bool:
    # An attempt at a stage that lacked what it was to read has failed, not completed.
    status = _status_of(context, stage)
    return not status or "COMPLETE" in status


def executors(context: SparkContext) -> set[str]:
    """Executors that Spark has, without those that it removes or decommissions."""
    found: Any = context._jsc.sc().getExecutorIds()
    return set(found.mkString(" ").split())


def shuffle_statuses(context: SparkContext) -> Any:
    """Spark's map from shuffles to what there is and was of their outputs."""
    scheduler: Any = context._jsc.sc().dagScheduler()
    # `SparkEnv` has it too, with classes around it that some installations lack.
    tracker = scheduler.getClass().getDeclaredField("mapOutputTracker")
    tracker.setAccessible(True)
    return tracker.get(scheduler).shuffleStatuses()


def lost_outputs(context: SparkContext) -> Callable[[int, int], bool]:
    """Return what tells whether a stage's partition writes again what Spark had, and has lost.

    A later job over the same shuffle does so, with nothing of the job that wrote it first but what
    was read of it. A job that failed or was cancelled before its shuffle was complete does not
    count: nobody has read that.
    """
    known: Any = context._jsc.sc().dagScheduler().stageIdToStage()
    shuffles = shuffle_statuses(context)
    # The first stage that wrote each shuffle.
    writers: dict[int, int] = {}
    # For the newest stages: the shuffle that they write, and what was lost of it. Asked once.
    written: dict[int, tuple[int, Any] | None] = {}

    def find(stage: int) -> tuple[int, Any] | None:
        found = known.get(stage)
        if not found.isDefined() or found.get().getClass().getSimpleName() != SHUFFLE_STAGE:
            return None
        shuffle = int(found.get().shuffleDep().shuffleId())
        status = shuffles.get(shuffle)
        if not status.isDefined():
            return None
        writers.setdefault(shuffle, stage)
        if len(writers) > SHUFFLES_MAX:
            # Those that Spark has dropped are written by no stage any more.
            alive = set(map(int, shuffles.keySet().mkString(" ").split()))
            for gone in writers.keys() - alive:
                del writers[gone]
        return shuffle, status.get().mapStatusesDeleted()

    def has_failed(stage: int) -> bool:
        # Spark notes it a little later; what it has not noted yet may have been complete.
        status = _status_of(context, stage)
        return bool(status) and set(status) == {"FAILED"}

    def was_lost(stage: int, partition: int) -> bool:
        if stage not in written:
            written[stage] = find(stage)
            if len(written) > STAGES_MAX:
                del written[next(iter(written))]
        found = written[stage]
        if found is None or found[1][partition] is None:
            return False
        shuffle = found[0]
        first = writers.setdefault(shuffle, stage)
        if first != stage and has_failed(first):
            writers[shuffle] = first = stage
        return first != stage

    return was_lost


def execution_ended(spark: SparkSession, execution: int) -> bool:
    """Whether a SQL execution is over."""
    jspark: Any = spark._jsparkSession
    found = jspark.sharedState().statusStore().execution(execution)
    return bool(found.isDefined() and found.get().completionTime().isDefined())


def goes_on(spark: SparkSession, execution: int) -> bool:
    """Whether jobs may come of an execution that is over.

    ``toLocalIterator`` ends its execution before its first job, and runs the next one when somebody
    asks for more rows: perhaps never. It has no end that could be known.
    """
    from py4j.protocol import Py4JJavaError

    jspark: Any = spark._jsparkSession
    found = jspark.sharedState().statusStore().execution(execution)
    if LOCAL_ITERATOR in str(found.get().details()):
        # With adaptive execution its shuffles are jobs of their own, before anybody asks for rows.
        return True
    numbers = found.get().jobs().keysIterator()
    newest = None
    while numbers.hasNext():
        number = int(numbers.next())
        newest = number if newest is None else max(newest, number)
    if newest is None:
        return False
    jcontext: Any = spark.sparkContext._jsc.sc()
    try:
        begun = jcontext.statusStore().job(newest).submissionTime()
    except Py4JJavaError:
        # So long ago that Spark has forgotten it: what had an end was seen to end before.
        return True
    ended = found.get().completionTime().get().getTime()
    return bool(begun.isDefined() and begun.get().getTime() >= ended)


def wait_for_events(context: SparkContext) -> None:
    """Wait a while until Spark's listeners have heard of all that has happened.

    Python may be about to end, in the middle of which Spark would report that a listener failed.
    """
    from py4j.protocol import Py4JJavaError

    jcontext: Any = context._jsc.sc()
    # A busy application is never done.
    with contextlib.suppress(Py4JJavaError):
        jcontext.listenerBus().waitUntilEmpty(EVENTS_MS_MAX)


def session_name(spark: SparkSession) -> str:
    """What tells `spark` from the other sessions of its application."""
    jspark: Any = spark._jsparkSession
    return str(jspark.sessionUUID())


@contextlib.contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make `spark` the session that Spark takes for the current one in this thread, for a while."""
    sessions: Any = spark._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _streams(spark: SparkSession) -> Any:
    """Spark's map of the streaming queries that run, which stays the same one."""
    known = _known_streams.get(spark)
    if known is None:
        jspark: Any = spark._jsparkSession
        known = _known_streams[spark] = jspark.sharedState().activeStreamingQueries()
    return known


def active_streams(spark: SparkSession) -> Iterator[Any]:
    """Streaming queries that run, of all sessions of the application."""
    # Not as py4j goes through a map: for each it meets an exception of Java's at the end, which
    # takes twenty times as long as all the rest.
    running = _streams(spark).elements()
    while running.hasMoreElements():
        yield running.nextElement()


def _active_query(spark: SparkSession, query: str) -> Any:
    """A streaming query that runs, of any session of the application; or ``None``."""
    jvm: Any = spark.sparkContext._jvm
    return _streams(spark).get(jvm.java.util.UUID.fromString(query))


def sessions_of_streams(
    spark: SparkSession, known: Container[str]
) -> dict[str, StreamingQueryManager]:
    """Return, by name, the sessions in which a streaming query runs and that are not `known`."""
    from pyspark.sql.streaming.query import StreamingQueryManager

    found: dict[str, Any] = {}
    if _streams(spark).isEmpty():
        # Asked by each task of all queries, of which most are no streams.
        return found
    for query in active_streams(spark):
        session = query.sparkSession()
        if (name := str(session.sessionUUID())) not in known:
            # Not as a session of Python's: making one changes what `RDD.toDF` belongs to.
            found[name] = StreamingQueryManager(session.streams())
    return found


def commits_late(spark: SparkSession, query: str) -> bool:
    """Whether a streaming query commits a batch when the next one may have begun."""
    found = _active_query(spark, query)
    kind = "" if found is None else found.getClass().getSimpleName()
    return kind == "AsyncProgressTrackingMicroBatchExecution"


def clocks(spark: SparkSession) -> Callable[[str, int], tuple[int, int, int]]:
    """Return what tells time, watermark and the watermark of late rows of a query's batch.

    They are what Spark wrote to its log before the batch began, so they are the same whenever it
    runs again. Rows are late for its own operators by the watermark of the batch before. What it
    returns raises LookupError if there is no such query any more, or Spark's log lacks the batch.
    """

    def clock(query: str, batch: int) -> tuple[int, int, int]:
        found = _active_query(spark, query)
        if found is None:
            message = "the query does not run any more"
            raise LookupError(message)
        log = found.offsetLog()
        of_batch, before = _batch_metadata(log, batch), _batch_metadata(log, batch - 1)
        if of_batch is None:
            message = f"the offset log of its checkpoint has no times of batch {batch}"
            raise LookupError(message)
        late = 0 if before is None else before.batchWatermarkMs()
        return int(of_batch.batchTimestampMs()), int(of_batch.batchWatermarkMs()), int(late)

    return clock


def next_batches(spark: SparkSession) -> Callable[[str], tuple[str, int, int] | None]:
    """Return what tells query, number and watermark of the batch that is about to begin.

    It is asked by a source of the query while Spark makes up that batch, and finds the query by a
    name in the source's offsets: Spark does not tell its sources whose they are.
    """
    from py4j.protocol import Py4JError

    # Running queries by the names of their sources.
    known: dict[str, Any] = {}

    def find(reader: str) -> Any:
        for query in active_streams(spark):
            # Others may have no batches, or no source yet.
            with contextlib.suppress(Py4JError):
                # Where the batch that is made up starts, and ends so far; and what is done.
                starts, ends = query.getStartOffsetsOfLatestBatch(), query.availableOffsets()
                known_offsets = (starts, ends, query.committedOffsets())
                if any(reader in str(offsets.mkString(" ")) for offsets in known_offsets):
                    return query
        return None

    def next_batch(reader: str) -> tuple[str, int, int] | None:
        query = known.get(reader)
        if query is None or not query.isActive():
            for name, old in list(known.items()):
                if not old.isActive():
                    known.pop(name, None)
            query = find(reader)
            if query is None:
                return None
            known[reader] = query
        batch = query.getLatestExecutionContext().batchId()
        watermark = query.watermarkTracker().currentWatermark()
        return str(query.id().toString()), int(batch), int(watermark)

    return next_batch


def _batch_metadata(log: Any, batch: int) -> Any:
    """What Spark wrote about a batch, or ``None``."""
    found = log.get(batch)
    if not found.isDefined():
        return None
    offsets = found.get()
    metadata = offsets.metadataOpt() if spark_version() >= (4, 2) else offsets.metadata()
    return metadata.get() if metadata.isDefined() else None


def reference_queue(context: SparkContext) -> Any:
    """Where the JVM puts weak references to what it has collected."""
    jvm: Any = context._jvm
    return jvm.java.lang.ref.ReferenceQueue()


def watched(context: SparkContext, gone: Any) -> tuple[Broadcast[None], Any, Path]:
    """Return a broadcast for a function to hold, a weak reference to it, and its file.

    The JVM puts the reference into `gone` when nothing that runs the function is left.
    """
    held: Any = context.broadcast(None)
    jvm: Any = context._jvm
    return held, jvm.java.lang.ref.WeakReference(held._jbroadcast, gone), Path(held._path)


def made_of(rdd: RDD[Any]) -> Any:
    """Return a weak reference to the JVM's RDD below the Python functions of `rdd`.

    It has as many partitions, as ``getNumPartitions`` of PySpark's own has it; they are not made
    now.
    """
    jvm: Any = rdd.context._jvm
    below: Any = rdd
    return jvm.java.lang.ref.WeakReference(below._prev_jrdd.rdd())


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


def stopping() -> tuple[type, str]:
    """What stops an application, whichever of its sessions is asked to: class and method."""
    from pyspark import SparkContext

    return SparkContext, "stop"


def taking_batches() -> tuple[type, str]:
    """What takes a function for the batches of a stream: class and method."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    return DataStreamWriter, "foreachBatch"


def grouped_operations() -> type:
    """The class in which ``GroupedData`` has ``transformWithState``."""
    from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin

    return PandasGroupedOpsMixin


def makers_of_functions() -> list[Any]:
    """The modules in which `MAKER` is looked up."""
    from pyspark.sql import udf
    from pyspark.sql.pandas import functions

    return [udf, functions]


def registration() -> type:
    """The class of ``spark.udf``."""
    from pyspark.sql.udf import UDFRegistration

    return UDFRegistration


def row_function(name: str, f: Any, kind: Any) -> Any:
    """What ``spark.udf.register`` makes of a plain function, whatever its hints and settings."""
    from pyspark.sql import udf
    from pyspark.sql.types import StringType
    from pyspark.util import PythonEvalType

    make: Any = getattr(udf, MAKER)
    batched = PythonEvalType.SQL_BATCHED_UDF
    return make(f, returnType=StringType() if kind is None else kind, evalType=batched, name=name)
