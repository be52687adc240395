"""Values and lists that a processor is given: Spark's classes, over a task's view."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ListState, ValueState

from clonos import _core
from clonos._state import refusals
from clonos._state.stored import NO_KEY, Cursor, Stored
from clonos._state.tuples import TupleCodec
from clonos._state.variables import Variable

PUT, DELETE, CLEAR = 0, 1, 2
_GONE = object()


class Place(NamedTuple):
    """Where a variable's entries are: in a task, or nowhere, as in ``init`` on the driver."""

    task: _core.StateTask | None
    number: int
    cursor: Cursor


class StateOfKey:
    """What the three kinds have in common."""

    def __init__(self, variable: Variable, place: Place) -> None:
        self._name, self._kind = variable.name, variable.kind.capitalize()
        self.is_deleted = False
        self._cursor = place.cursor
        self._number = place.number
        self._codec = TupleCodec(variable.values, f"state {self._name}")
        keys = variable.user_keys
        self._user_keys = (
            None if keys is None else TupleCodec(keys, f"the keys of state {self._name}")
        )
        self._stored = (
            None
            if place.task is None
            else Stored(place.task, place.number, place.cursor, self._user_keys, self._codec)
        )
        # What is loaded of a key; called for each, so it is no method around another one.
        self._entries: Callable[[int], list[Any]] = (
            _nothing if self._stored is None else self._stored.entries
        )
        # Keys that were looked at, and of which there is more.
        self._cut: AbstractSet[int] = frozenset() if self._stored is None else self._stored.cut

    def _rest(self, key: int, begins: bytes | None = None) -> Iterator[Any]:
        """What is stored of a key that was cut, behind what is loaded."""
        assert self._stored is not None  # noqa: S101  # else there is no such key
        return self._stored.rest(key, begins)

    def _key(self, doing: str) -> int:
        key = self._cursor.key
        if key == NO_KEY:
            raise refusals.refused(doing, self._why_no_key())
        return key

    def _why_no_key(self) -> str:
        if self.is_deleted:
            return refusals.not_initialized(self._kind, self._name)
        return refusals.no_key(self._name)

    def delete(self) -> None:
        """Have any use of the variable fail from now on."""
        self.is_deleted, self._cursor = True, Cursor()

    def _write(
        self,
        task: _core.StateTask,
        keys: list[int],
        ops: list[int],
        values: list[Any],
        user_keys: list[Any] | None = None,
    ) -> None:
        if not keys:
            return
        of_user = None
        if self._user_keys is not None and user_keys is not None:
            of_user = self._user_keys.arrow(user_keys)
        task.write(
            self._number,
            pa.array(keys, pa.int32()),
            pa.array(ops, pa.uint8()),
            of_user,
            self._codec.arrow(values),
        )


def _nothing(_key: int) -> list[Any]:
    return []


class OneValue(StateOfKey, ValueState):
    """`ValueState` of the key that is being handled."""

    def __init__(self, variable: Variable, place: Place) -> None:
        super().__init__(variable, place)
        # By key number, ``None`` where it was cleared.
        self._written: dict[int, tuple[Any, ...] | None] = {}

    def _current(self, doing: str) -> tuple[Any, ...] | None:
        key = self._cursor.key
        found: Any = self._written.get(key, _GONE)
        if found is not _GONE:
            return found  # type: ignore[no-any-return]
        entries = self._entries(self._key(doing))
        return entries[0] if entries else None

    def exists(self) -> bool:
        """Whether there is a value."""
        return self._current("checking value state exists") is not None

    def get(self) -> tuple[Any, ...] | None:
        """Return the value, or ``None``."""
        value = self._current("getting value state")
        return value if value is None or self._codec.shared else self._codec.given(value)

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Put a value in the place of the one there is."""
        value = self._codec.written(newValue)
        self._written[self._key("updating value state")] = value

    def clear(self) -> None:
        """Remove the value."""
        self._written[self._key("clearing value state")] = None

    def flush(self, task: _core.StateTask) -> None:
        """Write what was changed."""
        ops = [DELETE if value is None else PUT for value in self._written.values()]
        values = [value for value in self._written.values() if value is not None]
        self._write(task, list(self._written), ops, values)
        self._written = {}


class _ListChange:
    """What was done to the list of one key: elements behind those that are stored, or instead."""

    __slots__ = ("added", "cleared")

    def __init__(self) -> None:
        self.cleared = False
        self.added: list[tuple[Any, ...]] = []


class ManyValues(StateOfKey, ListState):
    """`ListState` of the key that is being handled."""

    def __init__(self, variable: Variable, place: Place) -> None:
        super().__init__(variable, place)
        self._changes: dict[int, _ListChange] = {}

    def _change(self, key: int) -> _ListChange:
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = _ListChange()
        return change

    def exists(self) -> bool:
        """Whether the list has elements."""
        key = self._key("checking value state exists")
        change = self._changes.get(key)
        if change is not None and (change.added or change.cleared):
            return bool(change.added)
        return bool(self._entries(key))

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Elements in order, as they are now."""
        key = self._cursor.key
        if key == NO_KEY:
            # As Spark, which takes any failure for the end.
            return iter(())
        change = self._changes.get(key)
        if change is not None and change.cleared:
            return map(self._codec.given, tuple(change.added))
        elements = tuple(self._entries(key))
        added = () if change is None else tuple(change.added)
        if key in self._cut:
            return map(self._codec.given, chain(elements, self._rest(key), added))
        return map(self._codec.given, elements + added)

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        """Put elements in the place of those there are."""
        added = self._elements(newState)
        change = self._change(self._key("updating value state"))
        change.cleared, change.added = True, added

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Put an element behind those there are."""
        value = self._codec.written(newState)
        self._change(self._key("updating value state")).added.append(value)

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        """Put elements behind those there are."""
        added = self._elements(newState)
        self._change(self._key("updating value state")).added.extend(added)

    def clear(self) -> None:
        """Remove all elements."""
        change = self._change(self._key("clearing value state"))
        change.cleared, change.added = True, []

    def _elements(self, given: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        elements = [self._codec.written(element) for element in given]
        if not elements:
            raise refusals.refused("updating value state", refusals.empty_list(self._name))
        return elements

    def flush(self, task: _core.StateTask) -> None:
        """Write what was changed."""
        keys: list[int] = []
        ops: list[int] = []
        values: list[tuple[Any, ...]] = []
        for key, change in self._changes.items():
            if change.cleared:
                keys.append(key)
                ops.append(CLEAR)
            keys.extend([key] * len(change.added))
            ops.extend([PUT] * len(change.added))
            values.extend(change.added)
        self._write(task, keys, ops, values)
        self._changes = {}
