"""What ``/proc`` says of this machine's processes: the one place that reads it, and needs Linux."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from clonos.errors import ConfigError

# Fields of /proc/<pid>/stat behind the command.
_STATE, _PARENT, _STARTED = 0, 1, 19


def pids() -> Iterator[int]:
    """All processes there are."""
    for entry in os.scandir(_proc()):
        if entry.name.isdecimal():
            yield int(entry.name)


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    fields = _stat(pid)
    return fields is not None and fields[_STATE] not in ("Z", "X")


def parent(pid: int) -> int:
    """Process that started `pid`; 0 if `pid` is gone."""
    fields = _stat(pid)
    return 0 if fields is None else int(fields[_PARENT])


def started_at(pid: int) -> str:
    """Start time of a process, so that a reused pid is another process; "0" if it is gone."""
    fields = _stat(pid)
    return "0" if fields is None else fields[_STARTED]


def executable(pid: int) -> str:
    """Path of the program that runs as `pid`; empty if it is gone or somebody else's."""
    try:
        return str(_proc(pid, "exe").readlink())
    except OSError:
        return ""


def command(pid: int) -> list[str]:
    """Command line of `pid`; empty if it is gone or somebody else's."""
    try:
        data = _proc(pid, "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return data.decode(errors="replace").rstrip("\0").split("\0")


def memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, now and at the most."""
    text = _proc(pid, "status").read_text()
    fields = dict(line.split(":", 1) for line in text.splitlines())
    now, most = (int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
    return now, most


def _proc(*names: object) -> Path:
    if sys.platform != "linux":
        # Without it each process would seem to have ended.
        message = f"Clonos looks after processes through Linux's /proc, and this is {sys.platform}"
        raise ConfigError(message, "CONFIG")
    return Path("/proc", *map(str, names))


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/<pid>/stat`` from the state on; None if the process is gone."""
    try:
        text = _proc(pid, "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses and may hold anything.
    return text.rpartition(")")[2].split()
