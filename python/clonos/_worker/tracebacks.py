"""Tracebacks of users' functions, without what stands between Spark and them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType

# What calls a user's function, our package and Python's: nobody looks there for his mistake.
_CALLERS = tuple(f"{Path(file).parent}/" for file in (Path(__file__).parent, asyncio.__file__))


def of_user(error: Exception) -> Exception:
    """Return the error with a traceback that begins at the user's code, if it came there."""
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None and _calls(traceback):
        traceback = traceback.tb_next
    return error if traceback is None else error.with_traceback(traceback)


def _calls(traceback: TracebackType) -> bool:
    return traceback.tb_frame.f_code.co_filename.startswith(_CALLERS)
