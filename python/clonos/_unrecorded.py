"""Saying so, where a causal service is used and nothing records what it gives.

A service outside a causal task is the plain thing. On the driver and in tests that is what one
wants; in a Spark task, or in a ``foreachBatch`` function that was not wrapped, it is most likely
an oversight: Spark may run it again, and another answer comes.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType

from clonos import _attached
from clonos.errors import NotRecordedWarning

BATCH_PROPERTY = "streaming.sql.batchId"
_IN_TASK = (
    "{service} was used in a Spark task at {where}, where nothing records it: if Spark runs the "
    "task again, it answers anew. Put @causal on the function that Spark calls, or make the "
    "operator with clonos.map_partitions, map_in_arrow or map_in_pandas. A causal function "
    "that is called inside an RDD's function, or in a thread that yours starts, records nothing"
)
_IN_BATCH_FUNCTION = (
    "{service} was used in a foreachBatch function at {where}, where nothing records it: wrap the "
    "function, foreachBatch(session.foreach_batch(fn))"
)
_IN_BATCH_THREAD = (
    "{service} was used at {where}, in a thread beside a foreachBatch function, where nothing "
    "records it. If the function started the thread, have it ask in its own, in which services are "
    "recorded (foreachBatch(session.foreach_batch(fn))), and hand the thread what it was told"
)
_log = logging.getLogger("clonos")
# Functions of ``foreachBatch`` that run in this process now.
_running: set[object] = set()
# Places of the user's code that were looked at in this process, and whether such a function ran.
_seen: set[tuple[CodeType, int, bool]] = set()


@contextlib.contextmanager
def batch_function() -> Iterator[None]:
    """Know that the function of a ``foreachBatch`` runs, whose threads nothing else tells of."""
    running = object()
    _running.add(running)
    try:
        yield
    finally:
        _running.discard(running)


def note(service: str) -> None:
    """Warn, once per process and place, if `service` is used where it should be recorded."""
    if "pyspark" not in sys.modules:
        return
    frame = _caller()
    place = (frame.f_code, frame.f_lineno, bool(_running))
    if place in _seen:
        return
    _seen.add(place)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        # Python's warnings are lost in a worker; its log reaches the executor's standard error.
        _log.warning(_IN_TASK.format(service=service, where=where))
    elif _attached.on_server():
        _log.warning(_IN_BATCH_FUNCTION.format(service=service, where=where))
    elif (text := _beside_a_batch()) is not None:
        message = text.format(service=service, where=where)
        warnings.warn_explicit(
            message, NotRecordedWarning, frame.f_code.co_filename, frame.f_lineno
        )


def _beside_a_batch() -> str | None:
    session = _attached.current()
    # A client of Spark Connect runs no such function: the server does.
    if session is None or not hasattr(session.spark, "_jsparkSession"):
        return None
    if session.spark.sparkContext.getLocalProperty(BATCH_PROPERTY):
        return _IN_BATCH_FUNCTION
    # The program's own thread waits for the query, or does something else.
    if _running and threading.current_thread() is not threading.main_thread():
        return _IN_BATCH_THREAD
    return None


def _caller() -> FrameType:
    """Return the frame of the user's code: the innermost that is neither ours nor `random`'s."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module != "random" and module.partition(".")[0] != "clonos":
            break
        frame = frame.f_back
    return frame
