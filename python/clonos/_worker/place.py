"""Which task the current Python worker runs, in the words of the design."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from clonos.errors import ConfigError

#: The partition of an exchange to which the frames were sent that a task reads, once it has read.
addressed: ContextVar[int | None] = ContextVar("addressed", default=None)
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
EPOCH_PROPERTY = "clonos.epoch"
#: Which run of that epoch it is: work that began in one must not be taken for the next one's.
STAMP_PROPERTY = "clonos.epoch.run"
#: Both, as a client of Spark Connect says it: it can set tags alone.
TAGS_PROPERTY = "spark.job.tags"
_TAG = "clonos-epoch"
# A tag of somebody else's that begins in the same way is no reason to fail.
_TAGGED = re.compile(rf"{_TAG}:((?:[0-9a-f]{{2}})+):([0-9]+)$")
_BATCH_TAG = "clonos-batch"
#: A batch's tag as a setting of the stream's own session: Spark hands it to the tasks of all its
#: queries, whichever thread asks.
BATCH_SETTING = "spark.clonos.batch"
_BATCH_TAGGED = re.compile(rf"{_BATCH_TAG}:((?:[0-9a-f]{{2}})+):([0-9]+):([0-9]+)$")
#: What a client of Spark Connect has asked for.
CLIENT_PROPERTY = "spark.connect.operation_id"
#: A setting that Spark makes for the session of a stream's batches.
STREAM_PROPERTY = "spark.sql.streaming.internal.stateStore.partitions"
EXECUTION_PROPERTY = "spark.sql.execution.id"
ROOT_PROPERTY = "spark.sql.execution.root.id"
BATCH_QUERY = "batch"


class OfRdd(NamedTuple):
    """A partition of an RDD that `clonos.map_partitions` has made, whichever task computes it."""

    number: int
    partition: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where the current code runs: a Spark task, in the words of the design.

    `epoch` is an int for a micro-batch of a streaming query, a name otherwise; `execution` the SQL
    execution, and the one that it is a part of, and `stamp` the run of an epoch that has a name.
    `of_rdd` says that `partition` is one of an RDD: which, and the partition of Spark's task.
    """

    query: str
    epoch: int | str
    partition: int
    stage: int
    attempt: int
    execution: tuple[int, int] | None = None
    stamp: int = 0
    of_rdd: tuple[int, int] | None = None


def application_query(app_id: str) -> str:
    """Return the query name of what belongs to no stream and no ``session.epoch``."""
    return f"app:{app_id}"


def execution_epoch(execution_id: str) -> str:
    """Return the epoch name of one SQL execution."""
    return f"sql-{execution_id}"


def stage_epoch(stage: int) -> str:
    """Return the epoch name of a stage of a job that belongs to no SQL execution."""
    return f"stage-{stage}"


def rdd_epoch(number: int) -> str:
    """Return the epoch name of an RDD that `clonos.map_partitions` has made."""
    return f"rdd-{number}"


def epoch_tag(name: str | None = None, stamp: int = 0) -> str:
    """Return the tag of a run of a named epoch; without a name, what all such tags begin with."""
    # A tag has no commas, and a name may have any.
    return f"{_TAG}:" if name is None else f"{_TAG}:{name.encode().hex()}:{stamp}"


def batch_tag(query: str, batch: int, execution: int) -> str:
    """Return the tag of a stream's batch, whose own SQL execution has a number."""
    return f"{_BATCH_TAG}:{query.encode().hex()}:{batch}:{execution}"


class Tagged(NamedTuple):
    """What a tag of Clonos's says: a run of a named epoch, or a batch, and its own execution."""

    query: str
    epoch: int | str
    stamp: int = 0
    execution: int | None = None


def _tagged(properties: dict[str, str]) -> Tagged | None:
    """What tags tell; Spark puts user and session before each. A batch is inside of an epoch."""
    said = (properties.get(of) or "" for of in (BATCH_SETTING, TAGS_PROPERTY))
    tags = ",".join(said).split(",")
    batches = (_BATCH_TAGGED.search(tag) for tag in tags)
    if (found := next(filter(None, batches), None)) is not None:
        return Tagged(_text(found[1]), int(found[2]), execution=int(found[3]))
    if (found := next(filter(None, map(_TAGGED.search, tags)), None)) is not None:
        return Tagged(BATCH_QUERY, _text(found[1]), int(found[2]))
    return None


def _text(written: str) -> str:
    return bytes.fromhex(written).decode()


def batch_of(properties: dict[str, str]) -> tuple[str, int] | None:
    """Query and batch that Spark's local properties say, if they are those of a stream's work."""
    query, batch = properties.get(QUERY_PROPERTY), properties.get(BATCH_PROPERTY)
    if query and batch is not None:
        return query, int(batch)
    tagged = _tagged(properties)
    if tagged is not None and isinstance(tagged.epoch, int):
        return tagged.query, tagged.epoch
    return None


def root_of(properties: dict[str, str]) -> str | None:
    """Return Spark's execution in which all that one query or one batch does is."""
    tagged = _tagged(properties)
    # What a batch function asks of a server, or in a thread, has a root of its own. A stream that
    # it starts has its session's settings, and batches of its own.
    is_of_batch = tagged is not None and properties.get(QUERY_PROPERTY) in {None, "", tagged.query}
    if tagged is not None and is_of_batch and tagged.execution is not None:
        return str(tagged.execution)
    return properties.get(ROOT_PROPERTY, properties.get(EXECUTION_PROPERTY))


def epoch_of(properties: dict[str, str], app_id: str) -> tuple[str, int | str | None]:
    """Query and epoch that Spark's local properties say; no epoch for a job over RDDs.

    A micro-batch comes first: a stream started inside ``session.epoch`` inherits its property.
    """
    query, batch = properties.get(QUERY_PROPERTY), properties.get(BATCH_PROPERTY)
    if query and batch is not None:
        return query, int(batch)
    epoch = properties.get(EPOCH_PROPERTY)
    if epoch:
        return BATCH_QUERY, epoch
    if (tagged := _tagged(properties)) is not None:
        return tagged.query, tagged.epoch
    if properties.get(STREAM_PROPERTY) and properties.get(CLIENT_PROPERTY) and not query:
        message = (
            "a causal function runs in a foreachBatch function over Spark Connect, and nothing "
            "tells of which batch: wrap the function, foreachBatch(session.foreach_batch(fn)), and "
            "start threads that ask another session than the batch's as "
            "pyspark.InheritableThread(..., session=spark)"
        )
        raise ConfigError(message, "CONFIG")
    execution = properties.get(EXECUTION_PROPERTY)
    if execution is not None:
        return application_query(app_id), execution_epoch(execution)
    return application_query(app_id), None


def current_place(
    app_id: str, epoch: str | None = None, *, of_rdd: OfRdd | None = None
) -> Place | None:
    """Return the task this process runs, or ``None`` outside Spark.

    Parameters
    ----------
    app_id : str
        Spark's application id.
    epoch : str, optional
        Epoch to use where Spark names none, in a job over RDDs (`DataFrame.foreachPartition` and
        `DataFrame.rdd` are such). Default: one for each stage, which Spark runs again under the
        same number, as jobs have no number that a task knows.
    of_rdd : OfRdd, optional
        Of an RDD, which has its own epoch where Spark names none, whichever job computes it, a
        query's over a frame that was made of it too; and which partition of it, wherever a union
        or `coalesce` has that computed.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    properties: dict[str, str] = context._localProperties or {}
    tagged = _tagged(properties)
    stamp = properties.get(STAMP_PROPERTY) or (0 if tagged is None else tagged.stamp)
    query, found = epoch_of(properties, app_id)
    if of_rdd is not None and query == application_query(app_id):
        found = rdd_epoch(of_rdd.number)
    elif found is None:
        found = stage_epoch(context.stageId()) if epoch is None else epoch
    execution, root = properties.get(EXECUTION_PROPERTY), root_of(properties)
    task = context.partitionId()
    return Place(
        query,
        found,
        task if of_rdd is None else of_rdd.partition,
        context.stageId(),
        context.taskAttemptId(),
        None if execution is None or root is None else (int(execution), int(root)),
        int(stamp) if query == BATCH_QUERY else 0,
        None if of_rdd is None else (of_rdd.number, task),
    )
