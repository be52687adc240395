"""A Python worker's connection to the agent of its executor.

A worker process outlives tasks and is forked by PySpark's daemon, so nothing is opened at import;
the connection is made at the first causal task, and kept for the process that made it.
"""

from __future__ import annotations

import os
import zlib
from typing import Any, TypeVar

from clonos import _core
from clonos._code import PYTHON_VERSION
from clonos._uses import Use
from clonos._worker import agents
from clonos._worker.place import Place
from clonos.errors import AgentError

Task = TypeVar("Task", _core.ResultTask, _core.ServiceTask)

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
    is opened at the one that is started in its place. Another stage may compute the same column at
    this moment, as on the two sides of a join: then this waits until its answers are there.

    Raises
    ------
    OperatorUsedTwice
        If that stage waits for a column that this task has under way.
    """
    try:
        return kind.open(client(config), config, **arguments)
    except AgentError:
        return kind.open(client(config), config, **arguments)


_opened = 0


def task_arguments(config: _core.SessionConfig, place: Place, use: Use) -> dict[str, Any]:
    """Arguments that open the log of `use` in this task.

    Each call is another opener, but of a partition of an RDD, which a process computes once at a
    time, and in `cartesian` for each row of the other one.
    """
    global _opened
    _opened += 1
    number = 0 if place.of_rdd is not None else _opened & 0xFFFFFF
    return {
        "query": place.query,
        "epoch": place.epoch,
        "operator": use.operator,
        "code": use.code,
        "python": PYTHON_VERSION,
        "token": use.token,
        "named": use.named,
        "execution": place.execution,
        "stamp": place.stamp,
        "partition": place.partition,
        "app": zlib.crc32(config.app_id.encode()),
        "stage": place.stage,
        "attempt": place.attempt,
        "worker": (os.getpid() << 24) | number,
        "of_rdd": place.of_rdd,
    }
