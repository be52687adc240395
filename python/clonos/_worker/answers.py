"""Answers of a batch that is still being worked on, and how they become stable before it is done.

What was answered must not be asked again because a later row failed, or because everything died a
minute later. So answers are recorded as they come: about every second, on an exception, and with
``flush="call"`` each at once. Rows are never timed: a thread of the worker's own looks at what is
there, once a second, however quick or slow the function is.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

# Under flush="auto", answers that are older than this are stable or on their way.
FLUSH_SECONDS = 1.0

ToArrow = Callable[[list[Any]], pa.Array]
Keep = Callable[[list[int], pa.Array], Any]


class Answers:
    """Answers to the rows of one batch that have no recorded value, as they come.

    Parameters
    ----------
    keep : callable, optional
        Records and publishes the values of some rows, given by their places. Without it, nothing
        is made stable before the batch is done.
    each : bool
        Whether `save` is to be called after each answer (``flush="call"``); else it is now and
        then.
    settle : callable, optional
        Waits until what was saved is stable; called by `save`.
    """

    __slots__ = (
        "_keep",
        "_kept",
        "_lock",
        "_parts",
        "_settle",
        "_to_arrow",
        "each",
        "places",
        "values",
    )

    def __init__(
        self,
        keep: Keep | None = None,
        *,
        each: bool = False,
        settle: Callable[[], Any] | None = None,
    ) -> None:
        self.each = each
        self.values: list[Any] = []
        self.places: list[int] | None = None
        self._keep = keep
        self._settle = settle
        self._to_arrow: ToArrow = pa.array
        self._kept = 0
        self._parts: list[pa.Array] = []
        self._lock = threading.Lock()

    def begin(self, to_arrow: ToArrow) -> list[Any]:
        """Return the list to append answers to, in the order of rows; `to_arrow` converts some.

        Where they come in another order, set `places` to a list as well, and append to it first.
        """
        self._to_arrow = to_arrow
        return self.values

    def save(self) -> None:
        """Make stable what is there; a value that has no place in the result type waits."""
        with self._lock:
            start, end = self._kept, len(self.values)
            if self._keep is None or start == end:
                return
            array = self._to_arrow(self.values[start:end])
            self._keep(self._places(start, end), array)
            self._parts.append(array)
            self._kept = end
        if self._settle is not None:
            self._settle()

    def rescue(self) -> None:
        """Make stable what is there although the batch has failed. Never raises."""
        with contextlib.suppress(Exception):
            self.save()
            return
        # One of them has no place in the result type; the others have.
        with self._lock:
            if self._keep is None:
                return
            for place in range(self._kept, len(self.values)):
                with contextlib.suppress(Exception):
                    array = self._to_arrow(self.values[place : place + 1])
                    self._keep(self._places(place, place + 1), array)

    def array(self) -> pa.Array:
        """All answers, in the order of rows."""
        with self._lock:
            if self._parts:
                rest = self.values[self._kept :]
                whole = pa.concat_arrays(
                    [*self._parts, self._to_arrow(rest)] if rest else self._parts
                )
            else:
                whole = self._to_arrow(self._ordered())
            # From here on the batch as a whole is recorded. What a late `save` would keep, its
            # caller would take for answers to the next one.
            self._keep = None
            if not self._parts:
                return whole
            if self.places is None:
                return whole
            order = sorted(range(len(self.places)), key=self.places.__getitem__)
            return whole.take(pa.array(order, pa.int64()))

    def _places(self, start: int, end: int) -> list[int]:
        return list(range(start, end)) if self.places is None else self.places[start:end]

    def _ordered(self) -> list[Any]:
        if self.places is None:
            return self.values
        ordered: list[Any] = [None] * len(self.values)
        for place, value in zip(self.places, self.values, strict=True):
            ordered[place] = value
        return ordered


class Watch:
    """Has `save` called about every second, in another thread, until `stop`."""

    def __init__(self, save: Callable[[], Any]) -> None:
        self._save: Callable[[], Any] | None = save
        self._lock = threading.Lock()
        _start_thread()
        _watches.add(self)

    def tick(self) -> None:
        """Call `save` unless it was stopped; what fails here fails again where it is awaited."""
        with self._lock, contextlib.suppress(Exception):
            if self._save is not None:
                self._save()

    def stop(self) -> None:
        """Wait until `save` is not running, and do not call it again."""
        _watches.discard(self)
        with self._lock:
            self._save = None


_watches: set[Watch] = set()
_thread: tuple[int, threading.Thread] | None = None


def _start_thread() -> None:
    """One thread for all tasks of a worker: it is there before the first batch that takes long."""
    global _thread
    if _thread is not None and _thread[0] == os.getpid():
        return
    _watches.clear()
    thread = threading.Thread(target=_tick, name="clonos-flush", daemon=True)
    _thread = (os.getpid(), thread)
    thread.start()


def _tick() -> None:
    while True:
        time.sleep(FLUSH_SECONDS)
        for watch in tuple(_watches):
            watch.tick()
