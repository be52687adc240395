"""Libraries of a worker process, which the collector of garbage need not look at.

After each task PySpark has a worker collect its garbage, and Python then looks at every object of
every library that was imported: some 20 ms with pandas and PyArrow, which is as long as a small
task. Frozen objects are left out. They are never found to be garbage, so what is frozen is only
what is there before the user's function is: a function that holds a model, and is part of a cycle,
as functions often are, would otherwise stay for ever.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

# Libraries are imported when they are first needed, some of them by the first task.
_NEW_MODULES = 50
_modules_then = -_NEW_MODULES
_attempt: int | None = None


class Libraries:
    """Freezes what a worker has imported, when it is unpickled in one.

    As the default of an argument it is unpickled before all that the function refers to.
    """

    def __reduce__(self) -> tuple[Callable[[], Libraries], tuple[()]]:
        return _frozen, ()


LIBRARIES = Libraries()


def _frozen() -> Libraries:
    global _modules_then, _attempt
    attempt = _task_attempt()
    # Of two functions of one task, the second comes when the first is there.
    if attempt is not None and attempt != _attempt:
        _attempt = attempt
        if len(sys.modules) >= _modules_then + _NEW_MODULES:
            _modules_then = len(sys.modules)
            gc.freeze()
    return LIBRARIES


def _task_attempt() -> int | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.taskAttemptId()
