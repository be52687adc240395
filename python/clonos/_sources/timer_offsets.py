"""Offsets of the source that has Spark begin a batch when a timer is due.

An offset is the number of batches that timers were the reason of. With it stands for which timer
the last of them was begun, in which version of the state: a batch whose rows nobody asked for
leaves both as they were, and another one is likely to do no better.
"""

from __future__ import annotations

from typing import NamedTuple

from clonos.errors import ConfigError

Offset = dict[str, str | int | None]

# The version of state that no batch has written yet.
NO_VERSION = -1
# Before a batch is begun once more that has left its timers as they were; doubled each time.
FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 60.0


class DueTimer(NamedTuple):
    """The first timer of an operator, in milliseconds since 1970; `version` of its state has it."""

    due: int
    version: int | None


def first_offset(reader: str) -> Offset:
    """Return the offset that a new query begins with; the reader's name stays in all of them."""
    return {"reader": reader, "batches": 0}


def reader_of(offset: Offset) -> str:
    """Return the name that the reader of a query began with, in whatever process that was.

    Raises
    ------
    ConfigError
        If the checkpoint has had another source in this place.
    """
    if "reader" not in offset:
        message = (
            "the checkpoint of this query has another source where its timers are now: a query "
            "whose sources change needs a new checkpointLocation (and state_from to keep its state)"
        )
        raise ConfigError(message, "CONFIG")
    return str(offset["reader"])


class Pauses:
    """Paces batches that leave the first timer as it was.

    Others may have come due behind it, and the program may ask for the rows of the next one.
    """

    def __init__(self) -> None:
        self._timer: DueTimer | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._until = 0.0

    def are_over(self, timer: DueTimer, now: float) -> bool:
        """Whether to begin once more, at `now` in seconds of a clock that never goes back."""
        is_new = timer != self._timer
        if not is_new and now < self._until:
            return False
        self._pause = FIRST_PAUSE_SECONDS if is_new else min(2 * self._pause, LAST_PAUSE_SECONDS)
        self._timer, self._until = timer, now + self._pause
        return not is_new


def next_offset(start: Offset, timer: DueTimer | None, pauses: Pauses, now: float) -> Offset:
    """Return where the next batch ends: where it starts, unless a timer is due.

    All timers that are due fire in one batch.
    """
    if timer is None:
        return start
    version = NO_VERSION if timer.version is None else timer.version
    was_begun = (start.get("due"), start.get("version")) == (timer.due, version)
    if was_begun and not pauses.are_over(timer, now):
        return start
    return {
        "reader": start["reader"],
        "batches": int(start["batches"] or 0) + 1,
        "due": timer.due,
        "version": version,
    }


def has_timers(start: Offset, end: Offset) -> bool:
    """Whether a batch is one for timers.

    One that runs again is what it was: of the first batch only the end is in Spark's log, and its
    start is made anew.
    """
    return start["batches"] != end["batches"]
