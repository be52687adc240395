"""Python's garbage collector, while a task makes many objects at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no cycles while many objects are made, none of which are garbage yet.

    The collector runs whenever there are some hundred objects more than before, and looks at those
    again that are not older than a few runs: for a window of Rows that takes several times as long
    as to make them. What the user's own code leaves behind is collected as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
