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
from pathlib import Path
from typing import Any

import clonos
from clonos import _processes
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
_FOLDER_HASH = 16


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request of `asking.ask`.

    Requests with ``settings`` start a host process, unless there is one with these; others are
    passed on to the one in ``folder``.
    """
    if "settings" in request:
        return _started(request["settings"], request["version"])
    return pass_on(Path(request["folder"]), request)


def pass_on(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the host process whose folder this is."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_SECONDS)
            connection.connect(str(folder / SOCKET))
            with connection.makefile("rw", encoding="utf-8") as lines:
                lines.write(json.dumps(request) + "\n")
                lines.flush()
                answered: dict[str, Any] = json.loads(lines.readline())
                return answered
    except (OSError, ValueError) as error:
        return {"gone": f"{type(error).__name__}: {error}"}


def _started(settings: dict[str, Any], version: str) -> dict[str, Any]:
    if version != clonos.__version__:
        return {
            "error": f"the driver's host has clonos {clonos.__version__}, and the client has "
            f"{version}: install the same version on both, and on all executors"
        }
    jvm = executor_jvm()
    if not jvm:
        return {"error": "this server does not plan Python data sources below the driver's JVM"}
    asked = json.dumps(settings, sort_keys=True)
    of = hashlib.sha256(asked.encode()).hexdigest()[:_FOLDER_HASH]
    folder = private_folder("connect", f"{jvm}-{_processes.started_at(jvm)}-{of}")
    with (folder / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (failed := _failure(folder)) is not None:
            return failed
        if not _is_running(folder):
            _start(folder, jvm, asked)
    state = "ready" if (folder / SOCKET).exists() else "waits"
    return {"folder": str(folder), "state": state}


def _failure(folder: Path) -> dict[str, Any] | None:
    """Why the process that was started came to nothing; told once, then another is started."""
    try:
        failed: dict[str, Any] = json.loads((folder / FAILED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    (folder / FAILED).unlink()
    return failed


def _is_running(folder: Path) -> bool:
    try:
        pid, started = (folder / STARTED).read_text(encoding="utf-8").split()
    except (FileNotFoundError, ValueError):
        return False
    return _processes.alive(int(pid)) and _processes.started_at(int(pid)) == started


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
            text=True,
        )
    if process.stdin is not None:
        # Not as arguments, which anybody on this host can read.
        process.stdin.write(settings)
        process.stdin.close()
    write_private(folder / STARTED, f"{process.pid} {_processes.started_at(process.pid)}".encode())
