"""Sources that can be read twice: receivers that keep what they took in until Spark committed it.

::

    driver
    ├── user's program ── Spark's planner ── reader.py: offsets, ranges, commit
    │                                          │ TCP, proved with the log's secret
    ├── receiver_main.py, a process: receives, keeps the log, outlives the driver for a while
    │                                          │
    executors ── reader.py: reads the rows of a range ┘
"""

from __future__ import annotations

from typing import Any

from clonos._sources.base import ReplayableSource, SourceLog
from clonos._sources.http import HttpSource
from clonos._sources.socket import SocketSource

__all__ = ["HttpSource", "ReplayableSource", "SocketSource", "SourceLog", "with_defaults"]


def with_defaults(
    source: type[ReplayableSource], session: bytes | None = None, **defaults: str
) -> type[ReplayableSource]:
    """Return a data source of the same name whose options have other defaults.

    It is a new class, so that it travels to Spark's planner by value. `session` is that whose
    credentials an object store is given.
    """
    members: dict[str, Any] = {
        "defaults": {**source.defaults, **defaults},
        "session": session,
        "__doc__": source.__doc__,
    }
    return type(source.__name__, (source,), members)
