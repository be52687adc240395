"""Whether a function may ask for an idempotency key: all that it may call is looked at.

Only functions that may ask have their equal rows counted. In doubt a function may: counting costs
little, and a key that changes is a second payment. What leads to no doubt is Python itself, plain
data, and libraries that are looked through and do not know of keys.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from clonos._held import attributes, is_of_python, is_users, package_of, wrapped_function
from clonos._imports import Found, imported_files
from clonos._names import closure, globals_in, names_in
from clonos._pickled import SIMPLE

# Of the program's own functions, classes and objects; beyond, a function is taken to ask.
_OWN_MAX = 2_000
# Of those of libraries; beyond, it is asked whether any library knows Clonos.
_LIBRARIES_MAX = 20_000
# Items of containers that are no plain data.
_ITEMS_MAX = 100_000
_SIMPLE = frozenset(SIMPLE)
_CONTAINERS = (list, tuple, set, frozenset, deque, dict, types.MappingProxyType)
# Objects of these modules hold what the user put into them, and call it.
_HOLDERS = {"builtins", "collections", "contextlib", "functools", "types", "typing"}
_PLUMBING = {"clonos", "pyspark", "py4j"}
# What holds another function, by attributes that are in no ``__dict__``.
_HELD: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    types.MethodType: ("__func__", "__self__"),
    types.BuiltinFunctionType: ("__self__",),
    functools.partial: ("func", "args", "keywords"),
    defaultdict: ("default_factory",),
}
# They find what no name in the code tells.
_BY_TEXT = {"getattr", "vars", "attrgetter", "methodcaller", "__dict__", "__getattribute__"}
_ANYTHING = {"eval", "exec", "__import__"}
_KEY = "idempotency_key"
# Functions and classes of libraries that were looked through, by their numbers; and what stood in
# their modules, in them and in containers that they hold, as the program may put functions of its
# own there later.
_clean: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_places: dict[int, tuple[Callable[[], Any], int]] = {}


def asks_for_keys(fn: Callable[..., Any], setup: Callable[[], Any] | None = None) -> bool:
    """Whether `fn` may ask for an idempotency key, itself or in what it calls.

    What the client does that `setup` makes for it is not known before there is one: it may.
    """
    return setup is not None or _Search().finds(fn)


class _FoundError(Exception):
    """There is something that asks, or that may."""


class _Search:
    def __init__(self) -> None:
        from clonos._services import idempotency_key

        self._asked = idempotency_key
        # What was seen is held, so that no other object gets its number.
        self._seen: dict[int, Any] = {}
        # The program's own comes first: it is what is sure to be called.
        self._own: list[Any] = []
        self._of_libraries: list[Any] = []
        # Containers that functions and classes of libraries hold.
        self._registries: list[Any] = []
        # Whether all is in its place that earlier searches have seen.
        self._checked = False
        self._items = 0
        self._looked_at = 0

    def finds(self, fn: Any) -> bool:
        try:
            self._add(fn, self._own)
            self._look_at_own()
            for _ in range(_LIBRARIES_MAX):
                if not self._of_libraries:
                    break
                self._look(self._of_libraries.pop(), self._of_libraries)
                self._look_at_own()
        except _FoundError:
            return True
        if self._of_libraries:
            return _is_known_to_libraries()
        self._remember()
        return False

    def _is_clean(self, value: Any) -> bool:
        """Whether an earlier search has seen that a value leads to no key."""
        if _clean.get(id(value)) is not value:
            return False
        if not self._checked:
            self._checked = True
            if any(_content(place()) != content for place, content in list(_places.values())):
                _clean.clear()
                _places.clear()
        return bool(_clean)

    def _remember(self) -> None:
        """Note what of libraries leads to no key, as looking through one takes a while."""
        for number, value in self._seen.items():
            named = issubclass(type(value), type | types.FunctionType)
            if not named or is_users(str(value.__module__)):
                continue
            _clean[number] = value
            if isinstance(value, types.FunctionType):
                self._registries.append(value.__globals__)
            else:
                _places[number] = (weakref.ref(value), _content(value))
        for held in self._registries:
            _places[id(held)] = (functools.partial(_itself, held), _content(held))

    def _look_at_own(self) -> None:
        while self._own:
            self._looked_at += 1
            if self._looked_at > _OWN_MAX:
                raise _FoundError
            self._look(self._own.pop(), self._own)

    def _add(self, value: Any, beside: list[Any]) -> None:
        """Take a value to be looked at; `beside` is where that stands which holds it."""
        kind = type(value)
        if kind in _SIMPLE or id(value) in self._seen or self._is_clean(value):
            return
        if value is self._asked:
            raise _FoundError
        self._seen[id(value)] = value
        if isinstance(value, types.ModuleType):
            return
        if issubclass(kind, _CONTAINERS):
            self._add_items(value, beside)
        of = value if issubclass(kind, type | types.FunctionType) else kind
        module = str(attributes(of).get("__module__", of.__module__))
        if is_of_python(module):
            # What is made of Python's own classes counts by what it holds.
            if of is kind and package_of(module) in _HOLDERS:
                beside.append(value)
        elif package_of(module) in _PLUMBING:
            if of is kind:
                self._add(wrapped_function(value, kind), beside)
        elif module not in sys.modules:
            # Made somewhere, as compiled functions and named tuples are.
            beside.append(value)
        else:
            (self._own if is_users(module) else self._of_libraries).append(value)

    def _add_items(self, value: Collection[Any], beside: list[Any]) -> None:
        parts: list[Iterable[Any]] = [value]
        if isinstance(value, Mapping):
            parts = [value.keys(), value.values()]
        for items in parts:
            if set(map(type, items)) <= _SIMPLE:
                continue
            self._items += len(value) if beside is self._own else 0
            if self._items > _ITEMS_MAX:
                raise _FoundError
            for item in list(items):
                self._add(item, beside)

    def _add_all(self, values: Iterable[Any], beside: list[Any]) -> None:
        for value in values:
            self._add(value, beside)

    def _add_held(self, values: Collection[Any], beside: list[Any]) -> None:
        """Take what a function or a class holds."""
        if beside is self._of_libraries:
            self._registries += [value for value in values if type(value) in {dict, list, set}]
        self._add_all(values, beside)

    def _look(self, value: Any, beside: list[Any]) -> None:
        kind = type(value)
        if issubclass(kind, types.FunctionType):
            self._look_at_function(value, beside)
        elif issubclass(kind, type):
            self._add_all([*value.__bases__, kind], beside)
            self._add_held(vars(value).values(), beside)
            return
        else:
            self._add(kind, beside)
            self._add_all(_held_by(value, kind), beside)
        self._add_all(attributes(value).values(), beside)

    def _look_at_function(self, fn: types.FunctionType, beside: list[Any]) -> None:
        code, scope = fn.__code__, fn.__globals__
        names = set(names_in(code))
        if _KEY in names:
            raise _FoundError
        by_text = False
        if beside is self._own:
            if _ANYTHING & names and _ANYTHING & globals_in(code):
                raise _FoundError
            if "import_module" in names or any(map(_may_ask, imported_files(code, scope))):
                raise _FoundError
            if "globals" in names and "globals" in globals_in(code):
                self._add_all(list(scope.values()), beside)
            by_text = not _BY_TEXT.isdisjoint(names)
            if by_text:
                names.update(_texts_in(code))
        held = [value for cell in closure(fn) for value in cell]
        held += [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
        held += [scope[name] for name in names if name in scope]
        self._add_held(held, beside)
        modules = [value for value in held if isinstance(value, types.ModuleType)]
        # What a function imports inside itself.
        modules += [sys.modules[name] for name in names if name in sys.modules]
        self._look_into(modules, names, by_text, beside)

    def _look_into(
        self, modules: list[types.ModuleType], names: set[str], by_text: bool, beside: list[Any]
    ) -> None:
        """Take what `names` are in modules, and in the modules that these names are there."""
        seen: set[int] = set()
        while modules:
            module = modules.pop()
            name = str(getattr(module, "__name__", None))
            if id(module) in seen or is_of_python(name):
                continue
            seen.add(id(module))
            held = attributes(module)
            named = [held[name] for name in names if name in held]
            if by_text and package_of(name) == "clonos":
                raise _FoundError
            if (by_text or not named) and beside is self._own and is_users(name):
                # It is not known what is taken from it.
                named = list(held.values())
                self._add_all(named, beside)
                continue
            self._add_held(named, beside)
            modules += [value for value in named if isinstance(value, types.ModuleType)]


def _itself(held: Any) -> Any:
    return held


def _content(held: Any) -> int:
    """Return what changes when something else is put into a class or a container."""
    if isinstance(held, type):
        held = vars(held)
    return hash(tuple(map(id, held.values() if isinstance(held, Mapping) else held or ())))


def _held_by(value: Any, kind: type) -> Iterator[Any]:
    """Yield what an object holds that is not in its ``__dict__``, without asking the object."""
    for base in kind.__mro__:
        for name in _HELD.get(base, ()):
            yield getattr(value, name)
        for name, held in vars(base).items():
            # Slots, and what wrappers of compiled libraries say that they wrap.
            if isinstance(held, types.MemberDescriptorType) or name == "__wrapped__":
                with contextlib.suppress(Exception):
                    yield held.__get__(value)


def _may_ask(found: Found) -> bool:
    """Whether a module that is imported in a function may ask; one that is not found may."""
    missed = found.digest is None and found.direct and found.name not in sys.modules
    return found.asks or missed


def _texts_in(code: types.CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _texts_in(constant)


def _is_known_to_libraries() -> bool:
    """Whether a library that is loaded has something of Clonos under a name of its own."""
    for name, module in list(sys.modules.items()):
        if is_of_python(name) or package_of(name) in _PLUMBING or is_users(name):
            continue
        for value in list(attributes(module).values()):
            is_module = isinstance(value, types.ModuleType)
            of = getattr(value, "__name__" if is_module else "__module__", None)
            if isinstance(of, str) and package_of(of) == "clonos":
                return True
    return False
