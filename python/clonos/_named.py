"""Classes and functions of the program that some code can name and no module has.

Each process has its own of them, and what comes back must be of the one that the code compares it
with. So they are saved as names, and found again by them, from the same code.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from clonos._names import closure, names_in

# Nothing tells two equal ones apart, and each is written as what it is.
ATOMS = frozenset({int, str, bytes, float, bool, type(None), complex})
# Flag of classes that some program has made.
_HEAP_TYPE = 1 << 9
# Objects that code is searched for at most.
_SEARCHED_MAX = 10_000
# With plain values, which cost little: a table may have millions.
_LOOKED_MAX = 10 * _SEARCHED_MAX

_CODE = (
    type,
    types.FunctionType,
    types.MethodType,
    types.CoroutineType,
    types.UnionType,
    staticmethod,
    classmethod,
    property,
    functools.partial,
)

Name = tuple[str, str]


class Named:
    """Classes and functions that are found from some code, by module and name.

    Parameters
    ----------
    *roots : object
        Functions, classes, or objects with methods: where to begin.

    Attributes
    ----------
    is_cut : bool
        Whether there is more than was looked at.
    """

    def __init__(self, *roots: Any) -> None:
        self._things: dict[Name, Any] = {}
        self._names: dict[int, Name] = {}
        # Kept, so that no other object gets the id of one that was made for the search only.
        seen: dict[int, Any] = {}
        # Code first: it is the same in each process, while what it holds may have changed, and a
        # table may be so large that nothing else would be found. Of either, what is near.
        left: tuple[deque[Any], deque[Any]] = (deque(roots), deque())
        looked = 0
        while any(left) and len(seen) < _SEARCHED_MAX and looked < _LOOKED_MAX:
            thing = (left[0] or left[1]).popleft()
            looked += 1
            if id(thing) in seen or _is_plain(thing):
                continue
            seen[id(thing)] = thing
            if isinstance(thing, (type, types.FunctionType)):
                if is_found(thing):
                    continue
                self._add(thing)
            for part in parts_of(thing):
                left[not isinstance(part, _CODE)].append(part)
        self.is_cut = any(left)

    def _add(self, thing: Any) -> None:
        name = (thing.__module__, thing.__qualname__)
        number = 1
        while name in self._things:
            # Made by one function, say. The search goes the same way in each process.
            number += 1
            name = (thing.__module__, f"{thing.__qualname__}#{number}")
        self._things[name] = thing
        self._names[id(thing)] = name

    def name_of(self, thing: Any) -> Name | None:
        """Name by which another process finds `thing`, if this is one that was found."""
        return self._names.get(id(thing))

    def __getitem__(self, name: Name) -> Any:
        return self._things[name]

    def __contains__(self, name: Name) -> bool:
        return name in self._things


def _is_plain(thing: Any) -> bool:
    """Whether nothing is in `thing` that could be a class or a function."""
    kind = type(thing)
    return kind in ATOMS or (kind in {list, tuple} and ATOMS.issuperset(map(type, thing)))


@functools.lru_cache(maxsize=1024)
def is_found(definition: Any) -> bool:
    """Whether any process finds a class or function by its name."""
    if isinstance(definition, type) and not definition.__flags__ & _HEAP_TYPE:
        # Python's own, not all of which it finds: the class of modules, say.
        return True
    if definition.__module__ == "__main__":
        return False
    try:
        pickle.dumps(definition)
    except Exception:  # noqa: BLE001 - whatever a class of classes raises when it is asked
        return False
    return True


def parts_of(thing: Any) -> Iterator[Any]:
    """Yield what an object names or holds, as far as classes and functions may be among it."""
    if isinstance(thing, type):
        yield from thing.__bases__
        yield from vars(thing).values()
    elif isinstance(thing, types.FunctionType):
        yield from _globals_of(thing.__code__, thing.__globals__)
        for held in closure(thing):
            yield from held
        yield from thing.__defaults__ or ()
        yield from (thing.__kwdefaults__ or {}).values()
    elif isinstance(thing, types.CoroutineType) and thing.cr_frame is not None:
        yield from _globals_of(thing.cr_code, thing.cr_frame.f_globals)
        yield from thing.cr_frame.f_locals.values()
    elif isinstance(thing, (staticmethod, classmethod)):
        yield thing.__func__
    elif isinstance(thing, types.MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, property):
        yield from (thing.fget, thing.fset)
    elif isinstance(thing, types.UnionType):
        yield from thing.__args__
    elif isinstance(thing, types.SimpleNamespace):
        yield from vars(thing).values()
    elif isinstance(thing, types.ModuleType):
        # What is imported is found by its name.
        if thing.__name__ not in sys.modules:
            yield from vars(thing).values()
    elif isinstance(thing, (set, frozenset)):
        # Classes stand in it by their addresses.
        code = [part for part in thing if isinstance(part, _CODE)]
        yield from sorted(code, key=lambda part: getattr(part, "__qualname__", ""))
        yield from (part for part in thing if not isinstance(part, _CODE))
    elif isinstance(thing, (list, tuple)):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    else:
        yield from _parts_of_object(thing)


def _globals_of(code: types.CodeType, names: dict[str, Any]) -> Iterator[Any]:
    for name in names_in(code):
        if name in names:
            yield names[name]


def _is_of_botocore(found: Any) -> bool:
    """Whether this is a property that may be asked: others do who knows what."""
    return isinstance(found, property) and found.fget.__module__.startswith("botocore.")


def _parts_of_object(thing: Any) -> Iterator[Any]:
    kind: Any = type(thing)
    yield kind
    try:
        held = vars(thing)
    except TypeError:
        return
    if not is_found(kind):
        if _is_of_botocore(getattr(kind, "exceptions", None)):
            # Clients of AWS have the classes of their errors there, made when they are asked for.
            with contextlib.suppress(Exception):
                yield thing.exceptions
        yield from held.values()
    elif "__wrapped__" in held:
        # As `functools.wraps` and causal functions have it.
        yield held["__wrapped__"]
