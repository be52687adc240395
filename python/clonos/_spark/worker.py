"""Which task the current Python worker runs, and its connection to the agent.

A worker process outlives tasks and is forked by PySpark's daemon, so nothing is opened at import;
the connection is made at the first causal task, and kept for the process that made it.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import Any, TypeVar

from clonos import _core
from clonos._spark import agents
from clonos.errors import AgentError

Task = TypeVar("Task", _core.ResultTask, _core.ServiceTask)

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
EPOCH_PROPERTY = "clonos.epoch"
EXECUTION_PROPERTY = "spark.sql.execution.id"
BATCH_QUERY = "batch"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the current code runs: a Spark task, in the words of the design.

    `epoch` is an int for a micro-batch of a streaming query, a name otherwise.
    """

    query: str
    epoch: int | str
    partition: int
    stage: int
    attempt: int


def application_query(app_id: str) -> str:
    """Return the query name of what belongs to no stream and no ``session.epoch``."""
    return f"app:{app_id}"


def execution_epoch(execution_id: str) -> str:
    """Return the epoch name of one SQL execution."""
    return f"sql-{execution_id}"


def epoch_of(properties: dict[str, str], app_id: str) -> tuple[str, int | str]:
    """Query and epoch that Spark's local properties say.

    A micro-batch comes first: a stream started inside ``session.epoch`` inherits its property.
    """
    query, batch = properties.get(QUERY_PROPERTY), properties.get(BATCH_PROPERTY)
    if query and batch is not None:
        return query, int(batch)
    epoch = properties.get(EPOCH_PROPERTY)
    if epoch:
        return BATCH_QUERY, epoch
    execution = properties.get(EXECUTION_PROPERTY)
    if execution is not None:
        return application_query(app_id), execution_epoch(execution)
    return application_query(app_id), "rdd"


def current_place(app_id: str, epoch: str | None = None) -> Place | None:
    """Return the task this process runs, or ``None`` outside Spark.

    Parameters
    ----------
    app_id : str
        Spark's application id.
    epoch : str, optional
        Epoch to use where Spark names none (an RDD has no SQL execution).
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    properties: dict[str, str] = context._localProperties or {}
    query, found = epoch_of(properties, app_id)
    if found == "rdd" and epoch is not None:
        found = epoch
    return Place(query, found, context.partitionId(), context.stageId(), context.taskAttemptId())


_client: tuple[int, bytes, _core.Client] | None = None


def client(config: _core.SessionConfig) -> _core.Client:
    """Return this process's connection to the agent of its executor, made at the first call."""
    global _client
    raw = config.to_bytes()
    if _client is not None and _client[0] == os.getpid() and _client[1] == raw:
        connection = _client[2]
        if connection.is_usable():
            return connection
    connection = _core.Client.connect(config, agents.socket_for(config))
    _client = (os.getpid(), raw, connection)
    return connection


def open_task(kind: type[Task], config: _core.SessionConfig, arguments: dict[str, Any]) -> Task:
    """Open a task's log at the agent of this executor.

    A connection kept from an earlier task may lead to an agent that has died since; then the task
    is opened at the one that is started in its place.
    """
    try:
        return kind.open(client(config), config, **arguments)
    except AgentError:
        return kind.open(client(config), config, **arguments)


_opened = 0


def task_arguments(config: _core.SessionConfig, place: Place, operator: str) -> dict[str, Any]:
    """Arguments that open the log of `operator` in this task; each call is another opener."""
    global _opened
    _opened += 1
    return {
        "query": place.query,
        "epoch": place.epoch,
        "operator": operator,
        "partition": place.partition,
        "app": zlib.crc32(config.app_id.encode()),
        "stage": place.stage,
        "attempt": place.attempt,
        "worker": (os.getpid() << 24) | (_opened & 0xFFFFFF),
    }
