"""The walk through all that a function refers to, which feeds a hash with what it finds."""

from __future__ import annotations

import functools
import hashlib
import pickle
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clonos import _held
from clonos._addresses import classes_by_address, has_addresses, without_addresses
from clonos._classes import annotations_of, members, written_doc
from clonos._held import is_users, name_of
from clonos._imports import Found, imported_files
from clonos._names import closure, docs, globals_in, names_in
from clonos._pickled import BYTES_MAX, SIMPLE, StandIn, TooLargeError, stable_digest, text_of

# Values nested deeper, and more of them, count by their pickles, where functions are but names.
DEPTH_MAX = 40
VALUES_MAX = 200_000
# With more items it is worth a try whether they are nothing but data, which is fast to pickle.
LONG = 1_000
_SIMPLE = frozenset(SIMPLE)
_DESCRIPTORS = {staticmethod, classmethod, property, functools.cached_property}
# Named by the class that they are a part of.
_PARTS_OF_CLASSES = {
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
}
_BOUND = {types.BuiltinFunctionType, types.MethodWrapperType}
# Their objects hold what the user put into them, and nothing else.
_HOLDERS = {"builtins", "collections", "functools", "types"}
# Further than any object that is being noted.
_NOWHERE = sys.maxsize


class _OpaqueError(Exception):
    """An object's state cannot be had."""


@dataclass
class Common:
    """What all walks for one fingerprint share."""

    left: int = VALUES_MAX
    unseen: str | None = None
    # Of functions and classes in sets; of one that is under way, nothing.
    alone: dict[int, bytes] = field(default_factory=dict)

    @functools.cached_property
    def classes(self) -> dict[int, type]:
        """All classes by their addresses."""
        return classes_by_address()


# A broadcast does not change once it is made.
_broadcasts: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class Walk:
    """Feeds a hash with everything that is reached from one function."""

    def __init__(self, common: Common, *, item: bool = False) -> None:
        self.common = common
        self._hash = _new_hash()
        # Objects that are being noted, outermost first, and the outermost that was met again.
        self._under_way: dict[int, int] = {}
        self._met = _NOWHERE
        # Functions and classes count by number, and are looked at in turn at the end.
        self._numbers: dict[int, int] = {}
        self._pending: list[tuple[Any, bool, bool]] = []
        # What was noted, so that it is looked at once however many hold it.
        self._noted: dict[int, tuple[bytes, Any]] = {}
        # Whether this is an item of a set, whose digest must not depend on other items.
        self._item = item
        # Whether what is looked at has a name of its own, in a module or an importable class.
        self._named = False
        # In how many objects of libraries it is, and in how many with their notes on classes.
        self._within = 0
        self._libraries = 0

    def note(self, kind: str, text: str | bytes = b"") -> None:
        """Feed the hash with a text, after what it is."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self._hash.update(f"{kind}:{len(data)}:".encode())
        self._hash.update(data)

    def root(self, fn: Any) -> None:
        """Note the operator's own function, which counts in full wherever it was installed."""
        inner = fn
        while isinstance(inner, functools.partial):
            inner = inner.func
        inner = _held.attributes(inner).get("__wrapped__", inner)
        if type(inner) is types.MethodType:
            inner = inner.__func__
        if not isinstance(inner, types.FunctionType):
            inner = vars(type(inner)).get("__call__")
        if isinstance(inner, types.FunctionType):
            self._refer(inner, own=True)
        self.value(fn, 0)

    def result(self) -> bytes:
        """Return the digest of all that was noted, and of the functions and classes in it."""
        done = 0
        while done < len(self._pending):
            thing, own, self._named = self._pending[done]
            done += 1
            self.note("body", str(done))
            if isinstance(thing, types.FunctionType):
                self._function(thing, own)
            else:
                self._class(thing)
        return bytes(self._hash.digest())

    def value(self, value: Any, depth: int) -> None:
        """Note a value of any type."""
        kind = type(value)
        if kind in _SIMPLE:
            self.note(kind.__name__, value if kind is bytes else self._text(value))
        elif kind in {tuple, list} and all(type(item) in _SIMPLE for item in value):
            # However many there are.
            self.note(kind.__name__, self._text(value))
        elif kind is types.FunctionType or issubclass(kind, type):
            self._refer(value)
        elif id(value) in self._noted:
            self.note("composed", self._noted[id(value)][0])
        elif id(value) in self._under_way:
            # An object that holds itself.
            place = self._under_way[id(value)]
            self._met = min(self._met, place)
            self.note("again", str(len(self._under_way) - place))
        else:
            self._compose(value, kind, depth)

    def _compose(self, value: Any, kind: type, depth: int) -> None:
        self.common.left -= 1
        place = len(self._under_way)
        outer, met = self._hash, self._met
        self._hash, self._met = _new_hash(), _NOWHERE
        self._under_way[id(value)] = place
        try:
            if depth > DEPTH_MAX or self.common.left < 0:
                self._far(value, kind)
            else:
                self._composed(value, kind, depth + 1)
            digest = self._hash.digest()
            if self._met >= place:
                self._noted[id(value)] = (digest, value)
                self._met = _NOWHERE
        finally:
            del self._under_way[id(value)]
            self._hash, self._met = outer, min(met, self._met)
        self.note("composed", digest)

    def _composed(self, value: Any, kind: type, depth: int) -> None:
        long = kind in {tuple, list, dict} and len(value) > LONG
        if long and self._pickle(value, kind, _held.data):
            return
        if kind in {tuple, list}:
            self.note(kind.__name__, str(len(value)))
            self._all(value, depth)
        elif kind in {set, frozenset}:
            self._set(value, depth)
        elif kind in {dict, types.MappingProxyType}:
            self._dict(value, depth)
        elif kind is functools.partial:
            self.note("partial")
            self._all((value.func, value.args, value.keywords), depth)
        elif kind is types.MethodType:
            self.note("method")
            self.value(value.__func__, depth)
            if not _held.is_of_library(value):
                self.value(value.__self__, depth)
        elif kind in _DESCRIPTORS:
            self.note(kind.__name__)
            parts = ("__func__", "fget", "fset", "func")
            self._all([getattr(value, part) for part in parts if hasattr(value, part)], depth)
        elif kind is functools._lru_cache_wrapper:
            self.note("cached")
            self.value(value.__wrapped__, depth)
        elif kind is types.ModuleType:
            self.note("module", value.__name__)
        elif kind in _BOUND:
            self.note("bound", name_of(value))
            if not (type(value.__self__) is types.ModuleType or _held.is_of_library(value)):
                self.value(value.__self__, depth)
        elif kind in _PARTS_OF_CLASSES:
            self.note("part", f"{name_of(value.__objclass__)}.{value.__name__}")
        elif kind is types.CodeType:
            self._code(value)
        elif kind is pickle.PickleBuffer:
            self._buffer(value)
        else:
            self._instance(value, kind, depth)

    def _all(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            self.value(value, depth)

    def _set(self, value: Any, depth: int) -> None:
        """Note a set, whose order depends on the process."""
        # Each item may need as much, so that it does not matter which of them comes first.
        common, left, used = self.common, self.common.left, 0
        share = max(left, 0) // (len(value) + 1)
        digests = []
        for item in value:
            common.left = share
            digests.append(self._alone(item, depth))
            used += share - common.left
        common.left = left - used
        self.note("set", b"".join(sorted(digests)))

    def _dict(self, value: Any, depth: int) -> None:
        """Note a dict in its order, by which a function may go."""
        if all(type(key) in _SIMPLE and type(item) in _SIMPLE for key, item in value.items()):
            # However many there are.
            self.note("dict", "\n".join(map(self._text, value.items())))
            return
        self.note("dict", str(len(value)))
        for key, item in value.items():
            self.value(key, depth)
            self.value(item, depth)

    def _namespace(self, held: Mapping[str, Any], depth: int) -> None:
        """Note what has names, and is found by these in whatever order it came."""
        self.note("namespace", str(len(held)))
        for name in sorted(held, key=str):
            self.note("name", str(name))
            self.value(held[name], depth)

    def _alone(self, value: Any, depth: int) -> bytes:
        """Return a digest of what has no place among others."""
        walk = Walk(self.common, item=True)
        walk._under_way, walk._named = self._under_way, self._named
        walk._within, walk._libraries = self._within, self._libraries
        walk.value(value, depth)
        self._met = min(self._met, walk._met)
        return bytes(walk._hash.digest())

    def _far(self, value: Any, kind: type) -> None:
        """Note what is nested too deeply, or is one of too many."""
        self.note("far", name_of(kind))
        self._pickle(value, kind, _held.by_name)

    def _pickle(self, value: Any, kind: type, stand_in: StandIn) -> bool:
        """Note the pickle of a value; return whether it has one."""
        try:
            digest = stable_digest(value, stand_in)
        except TooLargeError:
            self.note("large")
            self._miss(kind)
            return True
        if digest is not None:
            self.note("pickle", digest)
        elif stand_in is _held.by_name:
            self._miss(kind)
        return digest is not None

    def _buffer(self, value: pickle.PickleBuffer) -> None:
        with value.raw() as raw:
            self.note("buffer", str(raw.nbytes))
            self._hash.update(raw[:BYTES_MAX])
            if raw.nbytes > BYTES_MAX:
                self._miss(pickle.PickleBuffer)

    def _miss(self, kind: type | str) -> None:
        """Remember that something was not looked at, unless its name tells it from others."""
        if not self._named and self.common.unseen is None:
            self.common.unseen = kind if isinstance(kind, str) else name_of(kind)

    def _refer(self, thing: Any, own: bool = False) -> None:
        """Note a function or class."""
        if not own and _held.counts_by_name(thing):
            self.note("named", name_of(thing))
        elif self._item:
            alone = self.common.alone
            if id(thing) not in alone:
                alone[id(thing)] = b""
                walk = Walk(self.common)
                walk._named = self._named
                walk._refer(thing)
                alone[id(thing)] = walk.result()
            self.note("alone", alone[id(thing)])
        else:
            if id(thing) not in self._numbers:
                self._numbers[id(thing)] = len(self._numbers)
                self._pending.append((thing, own, self._named))
            self.note("number", str(self._numbers[id(thing)]))

    def _function(self, fn: types.FunctionType, own: bool) -> None:
        if not own and not is_users(fn.__module__):
            # Made by a library for the user, whose functions it may hold.
            self.note("made", name_of(fn))
            self._given(fn, notes=False)
            self._cells(fn)
            return
        self.note("function")
        self._code(fn.__code__)
        self._given(fn, notes=_held.is_users_file(fn.__code__.co_filename))
        self.value(annotations_of(fn), 0)
        self._cells(fn)
        named = self._named
        self._named |= _held.is_found(fn.__module__)
        names = set(names_in(fn.__code__))
        seen: set[int] = set()
        imported = imported_files(fn.__code__, fn.__globals__)
        # Once they are loaded, modules below a package stand in its globals.
        inside = {found.name for found in imported}
        for name in sorted(globals_in(fn.__code__) & fn.__globals__.keys()):
            held = fn.__globals__[name]
            loaded = isinstance(held, types.ModuleType) and held.__name__ in inside
            if not name.startswith("__") and not loaded:
                self.note("global", name)
                self._global(held, names, seen)
        self._imports(imported, names, seen)
        self._named = named
        if "__doc__" in names:
            self._all(docs(fn, names), 0)

    def _given(self, fn: types.FunctionType, *, notes: bool = True) -> None:
        """Note the defaults and attributes of a function; no mere notes, without `notes`.

        A library notes there what it does, as tenacity how often it tried.
        """
        self.value(fn.__defaults__, 0)
        self._namespace(fn.__kwdefaults__ or {}, 0)
        held = fn.__dict__.items()
        self._namespace({k: v for k, v in held if notes or not _held.is_note(v)}, 0)

    def _imports(self, imported: Iterable[Found], names: set[str], seen: set[int]) -> None:
        """Note what is imported inside a function."""
        for found in imported:
            self.note("imported", found.name)
            if found.digest is not None:
                self.note("file", found.digest)
            elif found.name in sys.modules:
                # Made by the program, which makes it before it is imported.
                self._module(sys.modules[found.name], names, seen)
            elif found.absent:
                self.note("absent")
            elif found.direct:
                self._miss(f"module {found.name}")

    def _cells(self, fn: types.FunctionType) -> None:
        for held in closure(fn):
            self.note("cell", str(len(held)))
            self._all(held, 0)

    def _global(self, value: Any, names: set[str], seen: set[int]) -> None:
        """Note what stands in a global of a function that uses `names`."""
        if isinstance(value, types.ModuleType) and is_users(value.__name__):
            self._module(value, names, seen)
        else:
            self.value(value, 0)

    def _module(self, value: types.ModuleType, names: set[str], seen: set[int]) -> None:
        """Note what a function takes from a module of the user's, as in `helpers.clean(text)`."""
        self.note("module", value.__name__)
        if id(value) in seen:
            # Modules may import each other.
            return
        seen.add(id(value))
        for name in sorted(names & vars(value).keys()):
            if not name.startswith("__"):
                self.note("global", name)
                self._global(vars(value)[name], names, seen)

    def _text(self, value: Any) -> str:
        """Return a text of plain values that every process has."""
        text = text_of(value)
        if self._libraries and has_addresses(text):
            return without_addresses(text, self.common.classes)
        return text

    def _code(self, code: types.CodeType) -> None:
        self.note("code", code.co_code)
        self.note("except", code.co_exceptiontable)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.note("counts", repr(counts))
        self.note("names", "\0".join(code.co_names + code.co_varnames))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            else:
                self.value(constant, 0)

    def _class(self, kind: type) -> None:
        self.note("class", name_of(kind))
        self._named |= _held.is_imported(kind)
        if is_users(type(kind).__module__):
            self.value(type(kind), 0)
        self._all(kind.__bases__, 0)
        self.value(annotations_of(kind), 0)
        self.note("doc")
        self.value(written_doc(kind), 0)
        found = members(kind)
        for name, member in found.written:
            self.note("member", name)
            self.value(member, 0)
        self._libraries += 1
        for name, table in found.tables:
            self.note("table", name)
            self.value(table, 0)
        self._libraries -= 1
        if not found.whole:
            self._miss(kind)

    def _instance(self, value: Any, kind: type, depth: int) -> None:
        self.note("instance", name_of(kind))
        users = is_users(kind.__module__)
        wrapped = _held.wrapped_function(value, kind)
        if users:
            self.value(kind, depth)
        if wrapped is not None:
            self.value(wrapped, depth)
        elif _held.is_broadcast(kind):
            self._broadcast(value, kind)
        elif _held.is_handle(value, kind):
            return
        elif users or not self._pickle(value, kind, _held.plain):
            self._state(value, kind, depth, library=not users and kind.__module__ not in _HOLDERS)

    def _state(self, value: Any, kind: type, depth: int, library: bool) -> None:
        before = self._hash.copy()
        sizes = [len(part) for part in self._grown()]
        self._within += library
        self._libraries += library
        try:
            self._reduced(value, kind, depth)
        except _OpaqueError:
            if self._within > library:
                # What holds a lock in an object of its own is a client as a whole, whose other
                # objects may be as short-lived.
                raise
        else:
            return
        finally:
            self._within -= library
            self._libraries -= library
        self._hash = before
        for part, size in zip(self._grown(), sizes, strict=True):
            while len(part) > size:
                part.pop() if isinstance(part, list) else part.popitem()
        self._miss(kind)
        for name, held in sorted(_held.attributes(value).items(), key=lambda part: str(part[0])):
            if not library or type(held) in _CALLED or issubclass(type(held), type):
                self.note("attribute", str(name))
                self.value(held, depth)

    def _grown(self) -> tuple[Any, ...]:
        return self._numbers, self._pending, self._noted

    def _reduced(self, value: Any, kind: type, depth: int) -> None:
        try:
            made_by, arguments, state, items, pairs = _held.reduced(value, kind)
            items = None if items is None else list(items)
            pairs = None if pairs is None else list(pairs)
        except Exception:  # noqa: BLE001 - whatever a library raises when asked to pickle a lock
            raise _OpaqueError from None
        if pairs is not None:
            pairs = dict(pairs)
        reduce: Any = kind.__reduce__
        if reduce is set.__reduce__ or reduce is frozenset.__reduce__:
            arguments = set(*arguments)
        self._all((made_by, arguments), depth)
        # Attributes, or both those in a dict and those in slots.
        for part in state if type(state) is tuple else (state,):
            if type(part) is dict and _held.is_namespace(value, kind, part):
                self._namespace(part, depth)
            else:
                self.value(part, depth)
        self._all((items, pairs), depth)

    def _broadcast(self, value: Any, kind: type) -> None:
        found = _broadcasts.get(value)
        if found is None:
            try:
                walk = Walk(Common())
                walk.value(_held.broadcast_value(value), 0)
                found = (walk.result(), walk.common.unseen)
            except Exception:  # noqa: BLE001 - it was destroyed, or is no longer what it was
                found = (b"", "Broadcast")
            else:
                _broadcasts[value] = found
        self.note("broadcast", found[0])
        if found[1] is not None:
            self._miss(kind)


_CALLED = {types.FunctionType, types.BuiltinFunctionType}
_new_hash = functools.partial(hashlib.blake2b, digest_size=16)
