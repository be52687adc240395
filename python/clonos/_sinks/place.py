"""Which epoch a task writes, and which driver commits it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from clonos import _processes
from clonos._sinks.fence import Driver
from clonos._worker import agents
from clonos._worker.place import batch_of, root_of


@dataclass(frozen=True, slots=True)
class Place:
    """One attempt of one writing task.

    `label` is the epoch as users see it, and `attempt` tells attempts apart over all restarts.
    """

    query: str
    label: str
    partition: int
    attempt: str


def this_driver() -> Driver:
    """Return the driver that the commit process belongs to.

    Spark starts that process for each commit, so the driver is the JVM above it.
    """
    jvm = agents.executor_jvm()
    return Driver(socket.gethostname(), jvm, _processes.started_at(jvm))


def streaming_task() -> tuple[str, int] | None:
    """Return the query and the epoch of the running task, None if it is of no streaming query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    properties: dict[str, str] = (context and context._localProperties) or {}
    return batch_of(properties)


def run() -> str:
    """Return which execution of a batch the task is of, empty if Spark does not say.

    A batch that runs again is another one. Other drivers have executions of the same names.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    properties: dict[str, str] = (context and context._localProperties) or {}
    return root_of(properties) or ""


def partition() -> int:
    """Return the number of the running task's partition, 0 outside Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context else 0
