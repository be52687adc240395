"""Timers of a task's keys: those that are stored, with what was registered and deleted since."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from clonos import _core
from clonos._state.stored import Cursor

REGISTER, DELETE = 0, 1


class Timers:
    """Timers of the keys of a task."""

    def __init__(self, task: _core.StateTask, cursor: Cursor) -> None:
        self._task = task
        self._cursor = cursor
        # By key number and expiry, whether it was registered or deleted.
        self._changes: dict[int, dict[int, bool]] = {}
        self._read: tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None

    def register(self, expiry: int) -> None:
        """Have the key that is being handled called when `expiry` has come."""
        self._changes.setdefault(self._cursor.key, {})[expiry] = True

    def delete(self, expiry: int) -> None:
        """Do not."""
        self._changes.setdefault(self._cursor.key, {})[expiry] = False

    def of_key(self) -> list[int]:
        """Timers of the key that is being handled, the earliest first."""
        key = self._cursor.key
        if self._read is None or self._read[0] <= key:
            numbers, expiries = self._task.timers(0)
            self._read = (self._cursor.loaded, np.asarray(numbers), np.asarray(expiries))
        _, numbers, expiries = self._read
        begin, end = np.searchsorted(numbers, key), np.searchsorted(numbers, key, "right")
        changes = self._changes.get(key, {})
        timers = {t for t in expiries[begin:end].tolist() if changes.get(t, True)}
        return sorted(timers | {expiry for expiry, there in changes.items() if there})

    def due(self, until: int) -> list[tuple[int, int]]:
        """Expiry and key number of the timers until then, of all keys, the earliest first."""
        numbers, expiries = self._task.due(until)
        stored = zip(expiries.to_pylist(), numbers.to_pylist(), strict=True)
        timers = {
            (expiry, key) for expiry, key in stored if self._changes.get(key, {}).get(expiry, True)
        }
        timers |= {
            (expiry, key)
            for key, changes in self._changes.items()
            for expiry, there in changes.items()
            if there and expiry <= until
        }
        return sorted(timers)

    def flush(self) -> None:
        """Write what was changed."""
        changes = [
            (key, expiry, REGISTER if there else DELETE)
            for key, of_key in self._changes.items()
            for expiry, there in of_key.items()
        ]
        if changes:
            keys, expiries, ops = zip(*changes, strict=True)
            self._task.write_timers(
                pa.array(keys, pa.int32()),
                pa.array(ops, pa.uint8()),
                pa.array(expiries, pa.int64()),
            )
        self._changes = {}
