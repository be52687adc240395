"""Finding or starting the agent of an executor.

The first causal task of an executor starts it; a file lock decides which worker that is. The agent
watches the executor's JVM and goes when it goes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from clonos import _children, _core, _processes
from clonos._temporary import private_folder

_AGENTS_FOLDER = re.compile("[0-9a-f]{16}")
_JVM_SEARCH_DEPTH = 4
# How long the log of an agent that is gone is kept.
_LEFTOVERS_KEPT_SECONDS = 24 * 3600


def socket_for(config: _core.SessionConfig) -> str:
    """Path of the Unix socket of the agent that serves this process, started if need be."""
    if config.local:
        return config.driver_socket
    jvm = executor_jvm()
    folder = agent_folder(config, jvm)

    def spawn() -> Callable[[], bool]:
        sweep(folder.parent)
        process = start_agent(config, folder, 0 if config.agent_scope == "host" else jvm)
        return lambda: process.poll() is not None

    return _core.ensure_agent(config, str(folder), spawn)


def agent_folder(config: _core.SessionConfig, jvm: int) -> Path:
    """Folder of one agent's socket, lock and log: private, and short enough for a socket."""
    scope = "host" if config.agent_scope == "host" else f"{jvm}-{_processes.started_at(jvm)}"
    # Of this session alone: the agent of one before, of the same application, may not be gone yet.
    name = hashlib.sha256(config.to_bytes() + scope.encode()).hexdigest()[:16]
    folder = private_folder(name)
    # It is in use from now on: see `sweep`.
    os.utime(folder)
    return folder


def sweep(parent: Path) -> None:
    """Remove the folders below `parent` of agents that are gone since a day or longer."""
    for folder in parent.iterdir():
        # Beside them stand logs of sources, which nobody may delete.
        if not _AGENTS_FOLDER.fullmatch(folder.name):
            continue
        try:
            age = time.time() - folder.stat().st_mtime
            if age < _LEFTOVERS_KEPT_SECONDS or _serves(folder / "agent.sock"):
                continue
            with (folder / "lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except OSError:
            # Not ours, or somebody else is at it.
            continue


def _serves(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(str(path)) == 0


def start_agent(
    config: _core.SessionConfig, folder: Path, watch_pid: int
) -> subprocess.Popen[bytes]:
    """Start an agent process of its own session, so that it outlives this worker.

    The configuration, with the secret, goes through standard input: neither the command line nor
    the environment of a process is private.
    """
    with (folder / "agent.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "clonos._worker.agent_main", str(folder), str(watch_pid)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=_children.environment(),
        )
    if process.stdin is not None:
        with process.stdin as pipe:
            pipe.write(config.to_bytes())
    return process


def executor_jvm() -> int:
    """Process id of the JVM above this Python worker (worker, daemon, JVM); 0 if there is none."""
    pid = os.getpid()
    for _ in range(_JVM_SEARCH_DEPTH):
        pid = _processes.parent(pid)
        # In a container it may be the first process of all.
        if pid < 1:
            return 0
        if Path(_processes.executable(pid)).name == "java":
            return pid
    return 0
