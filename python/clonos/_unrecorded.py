"""Saying so, where a causal service is used and nothing records what it gives.

A service outside a causal task is the plain thing. On the driver and in tests that is what one
wants; in a Spark task, or in a ``foreachBatch`` function that was not wrapped, it is most likely
an oversight: Spark may run it again, and another answer comes.
"""

from __future__ import annotations

import logging
import sys
import warnings
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
_log = logging.getLogger("clonos")
# Places of the user's code that were looked at in this process.
_seen: set[tuple[CodeType, int]] = set()


def note(service: str) -> None:
    """Warn, once per process and place, if `service` is used where it should be recorded."""
    if "pyspark" not in sys.modules:
        return
    frame = _caller()
    place = (frame.f_code, frame.f_lineno)
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
    elif _in_batch_function():
        message = _IN_BATCH_FUNCTION.format(service=service, where=where)
        warnings.warn_explicit(
            message, NotRecordedWarning, frame.f_code.co_filename, frame.f_lineno
        )


def _in_batch_function() -> bool:
    session = _attached.current()
    # A client of Spark Connect runs no such function: the server does.
    if session is None or not hasattr(session.spark, "_jsparkSession"):
        return False
    return bool(session.spark.sparkContext.getLocalProperty(BATCH_PROPERTY))


def _caller() -> FrameType:
    """Return the frame of the user's code: the innermost that is neither ours nor `random`'s."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module != "random" and module.partition(".")[0] != "clonos":
            break
        frame = frame.f_back
    return frame
