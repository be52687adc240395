"""Tracebacks of users' functions, without what stands between Spark and them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

# What calls a user's function, our package and Python's: nobody looks there for his mistake.
_LIBRARY = Path(os.__file__).parent
_OURS = f"{Path(__file__).parent.parent}/"
_CALLERS = (_OURS, f"{_LIBRARY}/asyncio/", f"{_LIBRARY}/concurrent/")


def of_user(error: BaseException) -> BaseException:
    """Return the error with a traceback that begins at the user's code, if it came there."""
    callers: tuple[str, ...] = _CALLERS
    if (tenacity := sys.modules.get("tenacity")) is not None:
        # It tries again, on our behalf or the user's.
        callers = (*callers, f"{Path(str(tenacity.__file__)).parent}/")
    lines: list[TracebackType] = []
    last = traceback = error.__traceback__
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_OURS if lines else callers):
            lines.append(traceback)
        last, traceback = traceback, traceback.tb_next
    # Where nothing of the user's ran, the line that raised says enough.
    rest = None if lines else last
    for line in reversed(lines):
        rest = TracebackType(rest, line.tb_frame, line.tb_lasti, line.tb_lineno)
    return error.with_traceback(rest)
