"""Helpers for tests that lose processes on purpose: find the parts of an application, kill them.

Everything is read from ``/proc``, so this works on Linux and for processes of the same machine
(``local-cluster[n,cores,memory]`` masters, which have real executor processes).

Examples
--------
>>> from clonos import testing
>>> lost = testing.executors(spark)[0]  # doctest: +SKIP
>>> testing.kill(lost.pid)  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from clonos import _processes
from clonos._processes import alive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

__all__ = [
    "Executor",
    "agents",
    "alive",
    "children",
    "descendants",
    "executors",
    "kill",
    "kill_tree",
    "python_daemon",
    "python_workers",
    "wait_gone",
    "wait_until",
]

_BACKEND = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_AGENT = "clonos._worker.agent_main"


@dataclass(frozen=True, order=True)
class Executor:
    """A running executor: its number in the application, and its JVM's process id."""

    id: int
    pid: int


def executors(driver: SparkSession | int) -> list[Executor]:
    """Executor JVMs of an application on this machine, by executor number.

    Parameters
    ----------
    driver : SparkSession or int
        The session of this process, or the process id of a driver.
    """
    pid = driver if isinstance(driver, int) else os.getpid()
    found = []
    for child in descendants(pid):
        command = _processes.command(child)
        if _BACKEND in command and "--executor-id" in command:
            number = command[command.index("--executor-id") + 1]
            # A launcher script has the same arguments until it becomes the JVM.
            if number.isdecimal() and Path(command[0]).name == "java":
                found.append(Executor(int(number), child))
    return sorted(found)


def python_daemon(jvm: int) -> int | None:
    """Process id of the Python daemon that an executor's JVM forks its workers from."""
    for child in children(jvm):
        if "pyspark.daemon" in _processes.command(child):
            return child
    return None


def python_workers(jvm: int) -> list[int]:
    """Process ids of the Python workers below an executor's JVM, without their daemon."""
    daemon = python_daemon(jvm)
    return [] if daemon is None else children(daemon)


def agents(jvms: list[int] | None = None) -> list[int]:
    """Process ids of Clonos agents: those of the executors with these JVMs; default: all."""
    found = []
    for pid, command in _commands():
        if _AGENT not in command:
            continue
        watched = command[-1]
        if jvms is None or (watched.isdecimal() and int(watched) in jvms):
            found.append(pid)
    return sorted(found)


def kill(*pids: int) -> None:
    """Kill processes with SIGKILL: nothing in them runs any more. One that is gone is no error."""
    for pid in pids:
        if pid <= 1:
            message = f"refusing to kill process {pid}"
            raise ValueError(message)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_tree(driver: int) -> list[int]:
    """Kill a driver with everything that belongs to it: JVM, executors, workers, agents.

    Returns
    -------
    list of int
        Process ids killed.
    """
    # The driver first stops, so that nothing is started while the others are looked for.
    with contextlib.suppress(ProcessLookupError):
        os.kill(driver, signal.SIGSTOP)
    below = descendants(driver)
    doomed = [driver, *below, *agents(below)]
    kill(*doomed)
    # What a JVM had started between the look and its death.
    kill(*(pid for pid in agents(below) if pid not in doomed))
    return doomed


def children(pid: int) -> list[int]:
    """Process ids of the direct children of a process."""
    return sorted(child for child, parent in _parents().items() if parent == pid)


def descendants(pid: int) -> list[int]:
    """Process ids of everything below a process, parents before children."""
    below: dict[int, list[int]] = {}
    for child, parent in _parents().items():
        below.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        next_children = below.get(waiting.pop(0), [])
        found.extend(next_children)
        waiting.extend(next_children)
    return found


def wait_until(
    condition: Callable[[], T], what: str, timeout: float = 60.0, interval: float = 0.05
) -> T:
    """Wait until `condition` gives something true, and return that.

    Parameters
    ----------
    condition : callable
        Asked every `interval` seconds.
    what : str
        Named in the error: "the second stage to run".
    timeout, interval : float
        Seconds.

    Raises
    ------
    TimeoutError
        If it did not become true.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            message = f"waited {timeout:g} s for {what}"
            raise TimeoutError(message)
        time.sleep(interval)


def wait_gone(*pids: int, timeout: float = 30.0) -> None:
    """Wait until none of these processes runs.

    Raises
    ------
    TimeoutError
        If one still does after `timeout` seconds.
    """
    wait_until(lambda: not any(map(alive, pids)), f"processes {pids} to end", timeout)


def _parents() -> dict[int, int]:
    return {pid: _processes.parent(pid) for pid in _processes.pids()}


def _commands() -> Iterator[tuple[int, list[str]]]:
    for pid in _processes.pids():
        yield pid, _processes.command(pid)
