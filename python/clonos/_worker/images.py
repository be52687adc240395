"""Bytes that stand for values: the same for equal ones, in any process.

Equal plain values have equal images, whichever objects they are made of and in whatever order their
sets were filled. Classes that no module has count by their names, such functions by their code and
what they hold.
"""

from __future__ import annotations

import io
import marshal
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any

from clonos._named import ATOMS, is_found

_SETS = (set, frozenset)
_ORDERED = {int, str, bytes}
# Has no references from one part to another, and no mark of strings that Python shares.
_PLAIN_MARSHAL = 0


class ContentPickler(pickle.Pickler):
    """Writes what tells a value from others."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=5)
        # Without its memo: two equal strings are two strings, be they one object or two.
        self.fast = True
        self._inside: set[int] = set()
        # What items of sets are put in order by, with the items, so that no other gets their ids.
        self._keys: dict[int, tuple[Any, bytes]] = {}

    def persistent_id(self, value: Any) -> Any:
        """Return what is written in place of `value`; ``None`` for what pickle writes."""
        kind = type(value)
        if kind in ATOMS:
            return None
        if isinstance(value, type):
            return None if is_found(value) else ("class", value.__module__, value.__qualname__)
        if kind is types.FunctionType:
            return None if is_found(value) else self._function(value)
        if (known := self.known(value)) is not None:
            return known
        if kind in _SETS:
            return "set", kind.__name__, self._sorted(value)
        if kind is list or kind is dict:
            return _flat(value)
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            return _array(value)
        return None

    def known(self, _value: Any) -> Any:
        """What stands for a value that is not to be written again."""
        return None

    def known_in_keys(self, _value: Any) -> Any:
        """What stands for a value in what items of sets are put in order by."""
        return None

    def _sorted(self, items: Any) -> list[Any]:
        kinds = {type(item) for item in items}
        if len(items) == 1 or (len(kinds) == 1 and kinds <= _ORDERED):
            # One alone, or of one plain type: they have an order already.
            return sorted(items)
        return sorted(items, key=self._key)

    def _key(self, item: Any) -> bytes:
        known = self._keys.get(id(item))
        if known is None:
            # Who is under way and comes again is inside of itself.
            self._keys[id(item)] = (item, b"")
            known = self._keys[id(item)] = (item, self._key_of(item))
        return known[1]

    def _key_of(self, item: Any) -> bytes:
        for local in (None, _Visited()):
            try:
                return self.apart(item, local or self.known_in_keys)
            except (ValueError, RecursionError):  # it holds itself
                continue
        return type(item).__qualname__.encode()

    def _function(self, function: types.FunctionType) -> Any:
        if id(function) in self._inside:
            return "function", function.__qualname__
        self._inside.add(id(function))
        # Written before anything else is: by then it is not inside of itself any more.
        parts = [
            function.__module__,
            function.__qualname__,
            list(_code(function.__code__)),
            [_cell(cell) for cell in function.__closure__ or ()],
            function.__defaults__,
            function.__kwdefaults__,
            function.__dict__,
        ]
        content = self.apart(parts, self.known)
        self._inside.discard(id(function))
        return "function", content

    def apart(self, value: object, known: Callable[[Any], Any]) -> bytes:
        """Return what is written for `value`, in bytes of its own."""
        buffer = io.BytesIO()
        pickler = ContentPickler(buffer)
        pickler._inside, pickler._keys = self._inside, self._keys
        pickler.known = known  # type: ignore[method-assign, assignment]
        pickler.known_in_keys = self.known_in_keys  # type: ignore[method-assign]
        pickler.dump(value)
        return buffer.getvalue()


def _code(code: types.CodeType) -> Iterator[Any]:
    yield code.co_code
    yield code.co_names
    for constant in code.co_consts:
        yield from _code(constant) if isinstance(constant, types.CodeType) else (constant,)


def _cell(cell: Any) -> Any:
    try:
        return [cell.cell_contents]
    except ValueError:  # nothing was put into it yet
        return []


class _Visited:
    """Numbers what is written, so that what holds itself comes to an end."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if type(value) is tuple:
            return None
        if id(value) in self._seen:
            return "again", self._seen[id(value)][0]
        self._seen[id(value)] = (len(self._seen), value)
        return None


def _flat(value: Any) -> Any:
    """Return a list or dict of nothing but plain values, written at once."""
    if type(value) is dict:
        plain = ATOMS.issuperset(map(type, value)) and ATOMS.issuperset(map(type, value.values()))
    else:
        plain = ATOMS.issuperset(map(type, value))
    return ("flat", marshal.dumps(value, _PLAIN_MARSHAL)) if plain else None


def _array(array: Any) -> Any:
    """Return the values of an array, however they lie in memory."""
    values = array.tolist() if array.dtype.hasobject else array.tobytes()
    return "array", repr(array.dtype.descr), array.shape, values


def content_bytes(value: object) -> bytes:
    """Return what tells `value` from other values.

    Raises
    ------
    Exception
        If `value` cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        ContentPickler(buffer).dump(value)
        return buffer.getvalue()
    except (ValueError, RecursionError):
        # It holds itself: then what is shared in it counts.
        buffer = io.BytesIO()
        pickler = ContentPickler(buffer)
        pickler.fast = False
        pickler.dump(value)
        return buffer.getvalue()
