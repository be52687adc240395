"""Python functions that stand in Spark's plans.

Private names of Spark, seen in 4.1, 4.2 and 4.3: ``PythonFunction.command``,
``PythonFunction.broadcastVars``, ``PythonBroadcast.path``.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from clonos._plain import plain_identity
from clonos._uses import function_identity

# Broadcasts of more bytes count by these: sets in them are in another order in each process.
# What is smaller takes up to a few seconds, once.
_BROADCAST_MAX = 4 << 20


def pickled(function: Any, byte: Any) -> bytes:
    """Return what a function was pickled to; `byte` is Scala's class tag of bytes."""
    command = function.command()
    return command if isinstance(command, bytes) else bytes(command.toArray(byte))


def identity(function: Any, command: bytes) -> str:
    """Return what is the same for a function that is made again, in another process too.

    `command` is what it was pickled to. In that, broadcasts have the numbers of this process.
    """
    held = function.broadcastVars()
    # Not as py4j goes through a list, which ends with an exception of Java's: some milliseconds.
    broadcasts = [held[at] for at in range(len(held))]
    read = {int(each.id()): each.value().path() for each in broadcasts}
    return function_identity(command, {number: _content(path) for number, path in read.items()})


@functools.lru_cache(1_024)
def _content(path: str | None) -> str:
    """Return what is the same of a broadcast that is made again; its file does not change."""
    file = Path(path or "")
    if not file.is_file():
        # It was destroyed; whoever reads it hears of it.
        return str(path)
    if file.stat().st_size <= _BROADCAST_MAX:
        return plain_identity(file.read_bytes())
    with file.open("rb") as content:
        return hashlib.file_digest(content, "blake2b").hexdigest()
