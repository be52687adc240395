"""Threads on which Spark is asked, by threads that Python did not start.

py4j has a connection to the JVM for each thread of Python, and to make one takes as long as twenty
requests. A thread of the core's is another one to Python whenever it calls, so it has the call
made by a thread that stays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

# As many as are called at once are begun, up to these. A call may wait for Spark, but for none of
# the other calls.
_THREADS_MAX = 64
P = ParamSpec("P")
T = TypeVar("T")


class KeptThreads:
    """Makes calls on threads that stay until `end`, after which callers make theirs themselves."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS_MAX, "clonos-asks-spark")

    def runs(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return what calls `function` on one of the threads."""

        @functools.wraps(function)
        def on_kept(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                asked = self._pool.submit(function, *args, **kwargs)
            except RuntimeError:
                # After `end`, or when Python is about to end: tasks may be running still.
                return function(*args, **kwargs)
            return asked.result()

        return on_kept

    def end(self) -> None:
        """Let the threads end; calls under way go on."""
        self._pool.shutdown(wait=False)
