"""Maps that a processor is given: Spark's class, over a task's view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.streaming.stateful_processor import MapState

from clonos import _core
from clonos._state.states import CLEAR, DELETE, PUT, Place, StateOfKey
from clonos._state.stored import NO_KEY, Stored
from clonos._state.tuples import TupleCodec, row_factory
from clonos._state.variables import Variable

Pair = tuple[tuple[Any, ...], tuple[Any, ...]]
# Of a map that is not all loaded, values are looked up one by one, and a piece of it is read after
# so many: who asks for all of them has read it all before that costs much more.
LOOKUPS = 64


class _Pairs:
    """Stored pairs of the key that was last looked at, by what stands for a user key."""

    __slots__ = ("_begins", "_beyond", "_key", "_of_user", "_pieces", "_stored", "is_cut", "loaded")

    def __init__(self, key: int, of_user: TupleCodec, stored: Stored | None) -> None:
        self._key, self._of_user, self._stored = key, of_user, stored
        self.loaded: dict[Any, Pair] = {}
        self.is_cut = False
        if stored is not None:
            self._add(stored.entries(key))
            self.is_cut = key in stored.cut
        self._begins: bytes | None = None
        # What was looked up behind those that are loaded.
        self._beyond: dict[Any, tuple[Any, ...] | None] = {}
        self._pieces = 0

    def _add(self, pairs: Iterable[Pair]) -> None:
        hashed = self._of_user.hashed
        self.loaded.update((hashed(pair[0]), pair) for pair in pairs)

    def value(self, hashed: Any, user: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Value of a user key."""
        pair = self.loaded.get(hashed)
        if pair is not None:
            return pair[1]
        return self._look_up(hashed, user) if self.is_cut else None

    def _look_up(self, hashed: Any, user: tuple[Any, ...]) -> tuple[Any, ...] | None:
        assert self._stored is not None  # noqa: S101  # else nothing is cut
        beyond = self._beyond
        if hashed in beyond:
            return beyond[hashed]
        if len(beyond) >= LOOKUPS * (self._pieces + 1):
            self._pieces += 1
            pairs, self._begins = self._stored.piece(self._key, self._begins)
            self._add(pairs)
            self.is_cut = self._begins is not None
            return self.value(hashed, user)
        found = beyond[hashed] = self._stored.look_up(self._key, user, self._begins)
        return found

    def rest(self) -> Iterator[Pair]:
        """Pairs that are not loaded."""
        assert self._stored is not None  # noqa: S101  # else nothing is cut
        return self._stored.rest(self._key, self._begins)


class _MapChange:
    """What was done to the map of one key, by what stands for a user key: the two, or ``None``."""

    __slots__ = ("cleared", "pairs")

    def __init__(self) -> None:
        self.cleared = False
        self.pairs: dict[Any, tuple[tuple[Any, ...], tuple[Any, ...] | None]] = {}


class ValueByKey(StateOfKey, MapState):
    """`MapState` of the key that is being handled."""

    def __init__(self, variable: Variable, place: Place) -> None:
        super().__init__(variable, place)
        self._changes: dict[int, _MapChange] = {}
        self._as_row = row_factory(variable.values.names)
        self._looked_at = NO_KEY
        self._pairs = _Pairs(NO_KEY, self._of_user, None)

    @property
    def _of_user(self) -> TupleCodec:
        assert self._user_keys is not None  # noqa: S101  # a map is declared with them
        return self._user_keys

    def _pairs_of(self, key: int) -> _Pairs:
        if key != self._looked_at:
            self._pairs = _Pairs(key, self._of_user, self._stored)
            self._looked_at = key
        return self._pairs

    def _all(self) -> Iterable[Pair]:
        key = self._cursor.key
        if key == NO_KEY:
            # As Spark, which takes any failure for the end.
            return []
        change = self._changes.get(key)
        if change is not None and change.cleared:
            return [(user, value) for user, value in change.pairs.values() if value is not None]
        pairs = self._pairs_of(key)
        changed = {} if change is None else change.pairs
        if pairs.is_cut:
            return self._with_rest(list(pairs.loaded.values()), pairs.rest(), dict(changed))
        now: dict[Any, Any] = pairs.loaded | changed
        return [pair for pair in now.values() if pair[1] is not None]

    def _with_rest(
        self, loaded: list[Pair], rest: Iterator[Pair], changed: dict[Any, Any]
    ) -> Iterator[Pair]:
        """What was changed stands where it was stored, and what is new behind that."""
        hashed = self._of_user.hashed
        for pairs in (loaded, rest):
            for pair in pairs:
                now = changed.pop(hashed(pair[0]), pair) if changed else pair
                if now[1] is not None:
                    yield now
        yield from (pair for pair in changed.values() if pair[1] is not None)

    def _found(self, key: int, user: tuple[Any, ...]) -> tuple[Any, ...] | None:
        hashed = self._of_user.hashed(user)
        change = self._changes.get(key)
        if change is not None:
            changed = change.pairs.get(hashed)
            if changed is not None:
                return changed[1]
            if change.cleared:
                return None
        return self._pairs_of(key).value(hashed, user)

    def exists(self) -> bool:
        """Whether there is any pair."""
        self._key("checking map state exists")
        return next(iter(self._all()), None) is not None

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Value of a user key as a Row, or ``None``."""
        user = self._of_user.written(key)
        found = self._found(self._key("getting value"), user)
        return None if found is None else self._as_row(self._codec.given(found))

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        """Whether there is a value of a user key."""
        user = self._of_user.written(key)
        return self._found(self._key("checking if map state contains key"), user) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Put a value for a user key."""
        user, written = self._of_user.written(key), self._codec.written(value)
        self._put(self._key("updating map state value"), user, written)

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """Remove a user key and its value."""
        user = self._of_user.written(key)
        self._put(self._key("removing key from map state"), user, None)

    def _put(self, key: int, user: tuple[Any, ...], value: tuple[Any, ...] | None) -> None:
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = _MapChange()
        change.pairs[self._of_user.hashed(user)] = (user, value)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Pairs of user key and value, as they are now."""
        key, value = self._of_user.given, self._codec.given
        return ((key(user), value(of_user)) for user, of_user in self._all())

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """User keys, as they are now."""
        return map(self._of_user.given, (user for user, _ in self._all()))

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Values, as they are now."""
        return map(self._codec.given, (value for _, value in self._all()))

    def clear(self) -> None:
        """Remove all pairs."""
        change = self._changes[self._key("clearing value state")] = _MapChange()
        change.cleared = True

    def flush(self, task: _core.StateTask) -> None:
        """Write what was changed."""
        keys: list[int] = []
        ops: list[int] = []
        users: list[tuple[Any, ...]] = []
        values: list[tuple[Any, ...]] = []
        for key, change in self._changes.items():
            if change.cleared:
                keys.append(key)
                ops.append(CLEAR)
            for user, value in change.pairs.values():
                keys.append(key)
                ops.append(DELETE if value is None else PUT)
                users.append(user)
                if value is not None:
                    values.append(value)
        self._write(task, keys, ops, values, users)
        self._changes, self._looked_at = {}, NO_KEY
