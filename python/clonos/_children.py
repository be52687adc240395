"""Processes that are started beside Spark's own."""

from __future__ import annotations

import os
import resource
import sys


def _entry(path: object) -> str:
    """A place that Python looks for modules in; it passes over what is no text."""
    return path if isinstance(path, str) else ""


def environment() -> dict[str, str]:
    """Return what a process is started with that is to outlive this one.

    It imports what this one does, from wherever that is. Its address space has the limit of this
    one's, if PySpark has set one: allocators put aside more than is needed, for each thread and in
    advance (the second is in KiB).
    """
    own = {"PYTHONPATH": os.pathsep.join(path for path in map(_entry, sys.path) if path)}
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        own |= {"MALLOC_ARENA_MAX": "1", "MIMALLOC_ARENA_RESERVE": "65536"}
    return {**os.environ, **own}
