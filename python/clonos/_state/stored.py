"""What the core holds of a variable for the keys of a task, made Python a window at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clonos._state.garbage import collector_paused
from clonos._state.tuples import TupleCodec

if TYPE_CHECKING:
    from clonos import _core

# Entries, and keys without any, that are Python objects at a time: keys are handled in order.
WINDOW = 8192
NO_KEY = -1
# Of a list or map that is not all loaded, who reads it again finds so many pieces of the rest.
PIECES_KEPT = 16


class Cursor:
    """Number of the key that is being handled, and how many keys of the task are loaded."""

    __slots__ = ("key", "loaded")

    def __init__(self) -> None:
        self.key = NO_KEY
        self.loaded = 0


class _Piece(NamedTuple):
    """Entries of the keys from `first` to `end`, by ascending number of their key."""

    first: int
    end: int
    numbers: np.ndarray[Any, Any]
    user_keys: Any
    values: Any


class Stored:
    """Entries of one variable by key; nothing is asked for before a processor looks."""

    def __init__(
        self,
        task: _core.StateTask,
        number: int,
        cursor: Cursor,
        user_keys: TupleCodec | None,
        values: TupleCodec,
    ) -> None:
        self._task = task
        self._number = number
        self._cursor = cursor
        self._user_keys = user_keys
        self._values = values
        self._pieces: list[_Piece] = []
        #: Keys that were looked at, and of whose list or map not all is loaded.
        self.cut: set[int] = set()
        # The first pieces of the rest of the key that was last read, by where each begins.
        self._of_rest = NO_KEY
        self._rest: dict[bytes | None, tuple[list[Any], bytes | None]] = {}
        # The window: entries of the keys from `_first` to `_end`.
        self._first = self._end = 0
        self._window: list[list[Any]] = []
        # How many keys it is to have, and how often it was looked into.
        self._span, self._looks = WINDOW, 0

    def entries(self, key: int) -> list[Any]:
        """Values of a key, in order; of a map, pairs of user key and value."""
        if not self._first <= key < self._end:
            # Keys whose timers fire come in the order of these: most of a large window would be
            # converted in vain, each time.
            was_used = 2 * self._looks >= self._end - self._first
            self._span = min(2 * self._span, WINDOW) if was_used else max(self._span // 8, 1)
            self._looks = 0
            with collector_paused():
                self._turn_to(key)
        self._looks += 1
        return self._window[key - self._first]

    def _turn_to(self, key: int) -> None:
        piece = self._piece_of(key)
        numbers = piece.numbers
        begin = int(np.searchsorted(numbers, key))
        end = min(piece.end, key + self._span)
        if begin + WINDOW < len(numbers):
            # All entries of the keys before the one with which it is full, and of `key` at least.
            end = min(end, max(int(numbers[begin + WINDOW]), key + 1))
        count = int(np.searchsorted(numbers, end)) - begin
        rows: Any = self._values.read(piece.values.slice(begin, count))
        if self._user_keys is not None:
            rows = zip(self._user_keys.read(piece.user_keys.slice(begin, count)), rows, strict=True)
        window: list[list[Any]] = [[] for _ in range(end - key)]
        for number, row in zip((numbers[begin : begin + count] - key).tolist(), rows, strict=True):
            window[number].append(row)
        self._first, self._end, self._window = key, end, window

    def _piece_of(self, key: int) -> _Piece:
        for piece in self._pieces:
            if piece.first <= key < piece.end:
                return piece
        first = self._pieces[-1].end if self._pieces else 0
        numbers, user_keys, values = self._task.values(self._number, first)
        self.cut.update(self._task.cut(self._number, first))
        piece = _Piece(first, self._cursor.loaded, np.asarray(numbers), user_keys, values)
        self._pieces.append(piece)
        return piece

    # -- what is not loaded ------------------------------------------------------------------------

    def rest(self, key: int, begins: bytes | None = None) -> Iterator[Any]:
        """Entries behind those that are loaded, or from where a piece ended, as they are used."""
        while True:
            entries, begins = self.piece(key, begins)
            yield from entries
            if begins is None:
                return

    def piece(self, key: int, begins: bytes | None) -> tuple[list[Any], bytes | None]:
        """Some of them, as `entries`, and where the next begins; ``None`` at the end."""
        if key != self._of_rest:
            self._of_rest, self._rest = key, {}
        found = self._rest.get(begins)
        if found is None:
            found = self._read(key, begins)
            if len(self._rest) < PIECES_KEPT:
                self._rest[begins] = found
        return found

    def _read(self, key: int, begins: bytes | None) -> tuple[list[Any], bytes | None]:
        user_keys, values, begins = self._task.piece(self._number, key, begins)
        with collector_paused():
            rows: Any = self._values.read(values)
            if self._user_keys is not None and user_keys is not None:
                rows = zip(self._user_keys.read(user_keys), rows, strict=True)
            return list(rows), begins

    def look_up(
        self, key: int, user_key: tuple[Any, ...], begins: bytes | None
    ) -> tuple[Any, ...] | None:
        """Value of a user key in a map, if it is behind what was loaded or read."""
        assert self._user_keys is not None  # noqa: S101  # a map has them
        found = self._task.lookup(self._number, key, self._user_keys.arrow([user_key]), begins)
        return None if found is None else next(iter(self._values.read(found)))
