"""Idempotency keys: a service that honours them acts once for a call, however often it is asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clonos import _core

_log = logging.getLogger("clonos")


def other_keys(
    key: Callable[[_core.Plan, int | None, int], str], uid: str
) -> Callable[[_core.Plan, int | None, int], str]:
    """Return what makes the same keys, and says once that the rows may have had others.

    For a task whose epoch was asked about in other partitions: nothing but ``row_key=`` tells a
    row there from an equal one of another partition, which is another call, and nothing tells what
    was asked together.
    """
    is_said = False

    def said(plan: _core.Plan, row: int | None, call: int) -> str:
        nonlocal is_said
        if not is_said:
            is_said = True
            _log.warning(
                "%s asks for an idempotency key in an epoch that was begun with another number of "
                "partitions: a call that was under way then, and has no answer yet, had another "
                "key. A function of one row (not of groups, pandas or Arrow) has the same key for "
                "a row in each partition if it is given row_key=",
                uid,
            )
        return key(plan, row, call)

    return said


class CallKeys:
    """Idempotency keys of the calls that a function makes for a row, each another.

    Parameters
    ----------
    row : callable
        The row that is being worked on; ``None`` where one call is for a whole batch.
    key : callable
        Key of a row's n-th call, from 0.
    """

    __slots__ = ("_key", "_last", "_next", "_row")

    def __init__(
        self, row: Callable[[], int | None], key: Callable[[int | None, int], str]
    ) -> None:
        self._row = row
        self._key = key
        self._last: int | None = -1
        self._next = 0

    def __call__(self) -> str:
        """Key of the next call."""
        row = self._row()
        if row != self._last:
            self._last, self._next = row, 0
        self._next += 1
        return self._key(row, self._next - 1)

    def again(self) -> None:
        """The row's calls are made once more, with the keys that they had."""
        self._next = 0


class RowsKeys(CallKeys):
    """Keys where several rows are being worked on at a time, and `row` says for which one asks."""

    __slots__ = ("_made",)

    def __init__(
        self, row: Callable[[], int | None], key: Callable[[int | None, int], str]
    ) -> None:
        super().__init__(row, key)
        self._made: dict[int | None, int] = {}

    def __call__(self) -> str:
        row = self._row()
        number = self._made.get(row, 0)
        self._made[row] = number + 1
        return self._key(row, number)

    def again(self) -> None:
        """The calls of the row that asks are made once more, with the keys that they had."""
        self._made.pop(self._row(), None)


class TaskKeys:
    """Idempotency keys of a task that records its services: it knows which call is next."""

    __slots__ = ("_task",)

    def __init__(self, task: _core.ServiceTask) -> None:
        self._task = task

    def __call__(self) -> str:
        return self._task.idempotency_key()

    def again(self) -> None:
        """The calls of the row or batch are made once more, with the keys that they had."""
        self._task.keys_again()
