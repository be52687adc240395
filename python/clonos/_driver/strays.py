"""Jobs that run beside an open epoch and are not part of it."""

from __future__ import annotations

import warnings

from clonos.errors import NotRecordedWarning

_SHOWN_MAX = 5


class Strays:
    """SQL executions that recorded outside of an epoch while it was open.

    Parameters
    ----------
    before : set of int
        Executions that were there when it was opened.
    """

    def __init__(self, before: set[int]) -> None:
        self._before = before
        self._seen: set[int] = set()

    def see(self, executions: set[int]) -> None:
        """Note the executions that are there now."""
        self._seen |= executions - self._before

    def warn(self, epoch: str) -> None:
        """Say so if there were any."""
        if not self._seen:
            return
        shown = ", ".join(map(str, sorted(self._seen)[:_SHOWN_MAX]))
        message = (
            f"while epoch {epoch!r} was open, SQL executions ({shown}) recorded outside of it, on "
            "threads that do not belong to it: they are not replayed with it. Start such threads "
            "as pyspark.InheritableThread, or give a pool pyspark.inheritable_thread_target(fn)"
        )
        # Above: this method, the context manager, its __exit__ in contextlib, the user's code.
        warnings.warn(message, NotRecordedWarning, stacklevel=4)
