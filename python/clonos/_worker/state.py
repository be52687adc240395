"""What an instance of a table function keeps from call to call, and how it comes back.

Two things are made of its attributes. Their contents, one by one, tell whether a call changed them;
an object that stands in several places is written where it comes first, and referred to from there
on. And what a call changed is saved as one pickle, in which objects that it shares with the rest
are references: so that what was one object is one again.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import functools
import io
import pickle
import re
import types
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.cloudpickle import CloudPickler

from clonos._named import ATOMS, Named, is_found
from clonos._worker.images import ContentPickler
from clonos.errors import ConfigError

# Attributes of an instance that are larger at its first call are taken for resources (a model, a
# table to look up) that calls do not change; those that grow beyond it are refused.
ATTRIBUTE_BYTES_MAX = 64 * 1024
_NOTES = "_clonos_notes"
_WHOLE = -1
# Values that cannot change: whether two are one object tells nothing.
_UNCHANGING = frozenset(
    {tuple, frozenset, range, re.Pattern, types.BuiltinFunctionType, types.ModuleType}
    | {dt.date, dt.datetime, dt.time, dt.timedelta}
    | {decimal.Decimal, uuid.UUID}
)


class Contents:
    """The attributes of an instance as they are now.

    Parameters
    ----------
    instance : object
        The instance.
    constants : collection of str
        Attributes that are not looked into.
    named : Named
        Classes that the instance's class names.
    """

    def __init__(self, instance: Any, constants: frozenset[str], named: Named) -> None:
        self.named = named
        self.by_name: dict[str, bytes] = {}
        self.failed: dict[str, Exception] = {}
        # Objects of each attribute, in the order in which they are written.
        self.objects: dict[str, list[Any]] = {}
        # Where an object stands first, and which attributes refer to another's objects.
        self.places: dict[int, tuple[str, int]] = {id(instance): ("", _WHOLE)}
        self.refers: dict[str, set[str]] = {}
        values = {n: v for n, v in instance.__dict__.items() if n != _NOTES}
        for name in constants & values.keys():
            kind: Any = type(values[name])
            if not _is_unchanging(kind):
                self.places[id(values[name])] = (name, _WHOLE)
        for name in sorted(values.keys() - constants):
            self._add(name, values[name])

    def _add(self, name: str, value: Any) -> None:
        self.objects[name], self.refers[name] = [], set()
        buffer = io.BytesIO()
        try:
            _Numbering(buffer, self, name).dump(value)
        except Exception as error:
            self.failed[name] = error
            for each in self.objects.pop(name):
                del self.places[id(each)]
        else:
            self.by_name[name] = buffer.getvalue()


@dataclass(slots=True)
class _Notes:
    """What is known of an instance from call to call."""

    # Contents at the first call; nothing for a constant.
    baseline: dict[str, bytes | None]
    # What the last call left, if that is known.
    after: Contents | None = None


class _Numbering(ContentPickler):
    def __init__(self, buffer: io.BytesIO, contents: Contents, name: str) -> None:
        super().__init__(buffer)
        self._contents = contents
        self._name = name

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, type) and (name := self._contents.named.name_of(value)) is not None:
            # Two classes that were made in one place have one name of their own.
            return ("named", *name)
        return super().persistent_id(value)

    def known_in_keys(self, value: Any) -> Any:
        place = self._contents.places.get(id(value), ("", 0))
        return ("at", *place) if place[1] == _WHOLE else None

    def known(self, value: Any) -> Any:
        kind: Any = type(value)
        if _is_unchanging(kind):
            return None
        contents, name = self._contents, self._name
        place = contents.places.get(id(value))
        if place is not None:
            if place[0] != name:
                contents.refers[name].add(place[0])
            return "at", *place
        # Kept, also what is made for the writing only: another object could take its id.
        contents.objects[name].append(value)
        contents.places[id(value)] = (name, len(contents.objects[name]) - 1)
        return None


@functools.cache
def _is_unchanging(kind: Any) -> bool:
    # A class of the program that is one of them may have attributes.
    return kind in ATOMS or kind in _UNCHANGING or issubclass(kind, (enum.Enum, dt.tzinfo))


class _Saver(CloudPickler):
    """Writes values with what they share with the rest of the instance as references."""

    def __init__(self, buffer: io.BytesIO, places: dict[int, Any], named: Named) -> None:
        super().__init__(buffer, protocol=5)  # type: ignore[no-untyped-call]
        self._places = places
        self._named = named
        self.wrote_code = False

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)  # type: ignore[no-untyped-call]
        if reduced is not NotImplemented and isinstance(value, (type, types.FunctionType)):
            self.wrote_code = True
        return reduced

    def persistent_id(self, value: Any) -> Any:
        if type(value) in ATOMS:
            return None
        if (place := self._places.get(id(value))) is not None:
            return place
        if isinstance(value, (type, types.FunctionType)) and not is_found(value):
            return self._named.name_of(value)
        return None


class _Loader(pickle.Unpickler):
    def __init__(self, data: bytes, instance: Any, contents: Contents, named: Named) -> None:
        super().__init__(io.BytesIO(data))
        self._instance = instance
        self._contents = contents
        self._named = named

    def persistent_load(self, place: Any) -> Any:
        first, second = place
        if isinstance(second, str):
            return self._named[first, second]
        if second == _WHOLE:
            return self._instance.__dict__[first] if first else self._instance
        return self._contents.objects[first][second]


class State:
    """What one instance keeps from call to call.

    Parameters
    ----------
    instance : object
        The instance, before a call.
    uid : str
        Name of the function, for errors.
    named : Named
        Classes and functions that the instance's class names.

    Raises
    ------
    ConfigError
        If it keeps more than is recorded with each call, or has no ``__dict__``.
    """

    def __init__(self, instance: Any, uid: str, named: Named) -> None:
        if not hasattr(instance, "__dict__"):
            message = f"the class of {uid} has __slots__; only attributes in __dict__ are recorded"
            raise ConfigError(message, "CONFIG")
        self._instance = instance
        self._uid = uid
        self._named = named
        if _NOTES not in instance.__dict__:
            instance.__dict__[_NOTES] = _Notes(self._first())
        self._notes: _Notes = instance.__dict__[_NOTES]
        self._baseline = self._notes.baseline
        self._constants = frozenset(n for n, first in self._baseline.items() if first is None)
        self._before = self._notes.after or self._contents()
        # Of no use any more if the call fails on its way.
        self._notes.after = None

    def _first(self) -> dict[str, bytes | None]:
        constants: frozenset[str] = frozenset()
        while True:
            contents = Contents(self._instance, constants, self._named)
            # A client, a lock, a model: nothing that a call would change and pass on. What was a
            # part of one may then be as large, and is one, too.
            large = {n for n, now in contents.by_name.items() if len(now) > ATTRIBUTE_BYTES_MAX}
            if not large and not contents.failed:
                return dict.fromkeys(constants) | contents.by_name
            constants |= large | contents.failed.keys()

    def _contents(self) -> Contents:
        contents = Contents(self._instance, self._constants, self._named)
        for name, error in contents.failed.items():
            message = (
                f"{self._uid} sets self.{name} in a call, which cannot be pickled ({error}): make "
                "it in __init__, or use record='services'"
            )
            raise ConfigError(message, "CONFIG") from error
        for name, content in contents.by_name.items():
            self._check_size(f"in self.{name}", len(content))
        return contents

    def _check_size(self, where: str, size: int) -> None:
        if size <= ATTRIBUTE_BYTES_MAX:
            return
        message = (
            f"{self._uid} keeps {size} bytes {where} from call to call, more than "
            f"the {ATTRIBUTE_BYTES_MAX} that are recorded with each: use record='services' and "
            "clonos.call(…) around what must not be asked twice"
        )
        raise ConfigError(message, "CONFIG")

    def identity(self) -> Iterator[bytes]:
        """What tells this state from others: names and contents of what earlier calls changed."""
        now = self._before.by_name
        for name in sorted(now.keys() | self._baseline.keys()):
            if name not in self._constants and now.get(name) != self._baseline.get(name):
                yield name.encode()
                yield now.get(name, b"")

    def changes(self) -> bytes | None:
        """What the call changed, to be put back by `restore`; ``None`` if nothing."""
        before, after = self._before, self._contents()
        self._notes.after = after
        gone = sorted(before.by_name.keys() - after.by_name.keys())
        changed = {n for n, now in after.by_name.items() if before.by_name.get(n) != now}
        if not changed and not gone:
            return None
        # What refers to an object that is made anew is made anew.
        while more := {n for n, refers in after.refers.items() if refers & changed} - changed:
            changed |= more
        places: dict[int, Any] = {
            key: place for key, place in after.places.items() if place[0] not in changed
        }
        values = {name: self._instance.__dict__[name] for name in sorted(changed)}
        buffer = io.BytesIO()
        saver = _Saver(buffer, places, self._named)
        saver.dump((values, gone))  # type: ignore[no-untyped-call]
        data = buffer.getvalue()
        if saver.wrote_code:
            # A float is twice as long there as in a content that it is plain in.
            written = 3 * sum(len(after.by_name[name]) for name in changed)
            self._check_size("of code that no module has in its attributes", len(data) - written)
        return data

    def restore(self, changes: bytes | None) -> None:
        """Put back what a recorded call changed."""
        if changes is None:
            return
        loader = _Loader(changes, self._instance, self._before, self._named)
        values, gone = loader.load()
        self._instance.__dict__.update(values)
        for name in gone:
            self._instance.__dict__.pop(name, None)
