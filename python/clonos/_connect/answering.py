"""What a process on the driver's host does for a request: starts the host process, or asks it.

Spark starts such a process for each plan and may end it at any time, so it keeps nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import clonos
from clonos import _children, _processes
from clonos._temporary import private_folder, write_private
from clonos._worker.agents import executor_jvm

# Names in the folder of a host process.
LOCK, GATEWAY, SOCKET, FAILED, STARTED, LOG = (
    "lock",
    "gateway",
    "ask",
    "failed",
    "pid",
    "log",
)
# Longer than the host process keeps a request that is not done.
TIMEOUT_SECONDS = 20.0
# Before a request comes again that nobody has answered.
PAUSE_SECONDS = 0.2
_FOLDER_HASH = 16


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request of `asking.ask`.

    Requests with ``settings`` start a host process, unless there is one with these; others are
    passed on to the one in ``folder``. They may come again: a client knows of an answer that was
    lost no more than that it did not come.
    """
    if "settings" in request:
        return _started(request["settings"], request["version"], request["process"])
    return pass_on(Path(request["folder"]), request)


def pass_on(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the host process whose folder this is."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        try:
            connection.connect(str(folder / SOCKET))
            with connection.makefile("rw", encoding="utf-8") as lines:
                lines.write(json.dumps(request) + "\n")
                lines.flush()
                answered: dict[str, Any] = json.loads(lines.readline())
                return answered
        except (FileNotFoundError, ConnectionRefusedError) as error:
            return {"gone": f"{type(error).__name__}: {error}"}
        except (OSError, ValueError):
            # It is slow, or may have heard. If it is gone, that is seen when this comes again.
            time.sleep(PAUSE_SECONDS)
            return {"later": True}


def _started(settings: dict[str, Any], version: str, process: str | None) -> dict[str, Any]:
    """Have a host process run; `process` is the one that the client waits for, if it does."""
    if version != clonos.__version__:
        return {
            "error": f"the driver's host has clonos {clonos.__version__}, and the client has "
            f"{version}: install the same version on both, and on all executors"
        }
    jvm = executor_jvm()
    if not jvm:
        return {"error": "this server does not plan Python data sources below the driver's JVM"}
    asked = json.dumps(settings, sort_keys=True)
    # The path of a socket is short.
    of = f"{jvm} {_processes.started_at(jvm)} {asked}"
    folder = private_folder("connect", hashlib.sha256(of.encode()).hexdigest()[:_FOLDER_HASH])
    with (folder / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_running(folder):
            if process is not None and process == _process(folder):
                return _failure(folder)
            _start(folder, jvm, asked)
        state = "ready" if (folder / SOCKET).exists() else "waits"
        return {"folder": str(folder), "state": state, "process": _process(folder)}


def _failure(folder: Path) -> dict[str, Any]:
    """Why the process that was started last came to nothing."""
    try:
        failed: dict[str, Any] = json.loads((folder / FAILED).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {"error": f"the process beside the Spark driver has ended: see {folder / LOG}"}
    return failed


def _process(folder: Path) -> str | None:
    """What tells the process that was started last from all others of this host."""
    try:
        return (folder / STARTED).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _is_running(folder: Path) -> bool:
    process = _process(folder) or ""
    pid = int(process.split()[0] if process else 0)
    return bool(pid) and _processes.alive(pid) and process_name(pid) == process


def process_name(pid: int) -> str:
    """Name of a process of this host, which the next one with its number has not."""
    return f"{pid} {_processes.started_at(pid)}"


def _start(folder: Path, jvm: int, settings: str) -> None:
    for name in (GATEWAY, SOCKET, FAILED):
        (folder / name).unlink(missing_ok=True)
    write_private(folder / LOG, b"")
    with (folder / LOG).open("ab") as log:
        # Its own session: this process is ended with all that Spark knows to be below it.
        process = subprocess.Popen(
            [sys.executable, "-m", "clonos._connect.host", str(folder), str(jvm)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=_children.environment(),
            text=True,
        )
    if process.stdin is not None:
        # Not as arguments, which anybody on this host can read.
        process.stdin.write(settings)
        process.stdin.close()
    write_private(folder / STARTED, process_name(process.pid).encode())
