"""What the user wrote in a class, apart from what Python and libraries made of it.

A library that makes classes (by a metaclass, a base or a decorator) leaves notes of its own in
them, under names with two underscores on each side: schemas, compiled validators, caches that are
filled when the class is used. They are not looked at. What the user asked for stands in those that
list it: under the names that he wrote, an object of the library for each (a field with its default
and its limits, a validator with its mode). The other notes follow from these.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from clonos._held import attributes, is_installed, is_of_python, is_users
from clonos._names import names_in
from clonos._pickled import SIMPLE

_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)
_SIMPLE = frozenset(SIMPLE)
# Written by the interpreter, not by the user; or noted under another name.
_NO_PART_OF_A_CLASS = {
    "__dict__",
    "__weakref__",
    "__module__",
    "__doc__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
    "__abstractmethods__",
    "_abc_impl",
    "__match_args__",
    "__annotations__",
    "__annotate_func__",
    "__annotations_cache__",
}

# Python's own notes on a class, which it does not change once it is made.
_OF_PYTHON = {
    "__dataclass_fields__",
    "__orig_bases__",
    "__parameters__",
    "__slots__",
    "__type_params__",
}


class Members(NamedTuple):
    """What stands in a class, each under its name, in the order of the names."""

    written: list[tuple[str, Any]]
    # Of a library's notes those that list what the user wrote.
    tables: list[tuple[str, Any]]
    # Whether the notes that are left out follow from the tables.
    whole: bool


def annotations_of(thing: Any) -> Mapping[str, Any]:
    """Return the annotations of a function, or those of a class without its bases.

    They are texts if they name what is not there (yet).
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        try:
            found = annotationlib.get_annotations(thing, format=annotationlib.Format.VALUE)
        except Exception:  # noqa: BLE001 - whatever the user's expressions raise
            found = annotationlib.get_annotations(thing, format=annotationlib.Format.STRING)
        return dict(found)
    held = vars(thing).get("__annotations__") if isinstance(thing, type) else thing.__annotations__
    return held if isinstance(held, dict) else {}


def written_doc(kind: type) -> Any:
    """Return the text of a class, unless it was made of the names and defaults of its fields."""
    doc = vars(kind).get("__doc__")
    generated = isinstance(doc, str) and doc.startswith(f"{kind.__name__}(")
    return None if generated else doc


def members(kind: type) -> Members:
    """Return what stands in a class of the user's."""
    own = {name: held for name, held in vars(kind).items() if name not in _NO_PART_OF_A_CLASS}
    if not _is_of_libraries(kind, own):
        return Members(sorted(own.items()), [], whole=True)
    names = _names(kind)
    written, tables, left_out, whole = [], [], False, True
    for name, held in sorted(own.items()):
        if not _is_note(name, held):
            written.append((name, held))
            continue
        found = [part for part in _parts(held) if _is_table(part)]
        asked_for = [part for part in found if names & _keys(part)]
        tables += [(name, part) for part in asked_for]
        # What is empty may be a cache that is not filled yet.
        left_out |= not asked_for and held != {}
        # A table of what is nowhere else in the class.
        whole &= len(asked_for) == len(found)
    listed = bool(tables) or any(
        members(base).tables for base in kind.__bases__ if is_users(base.__module__)
    )
    return Members(written, tables, whole and (listed or not left_out))


def _is_of_libraries(kind: type, own: dict[str, Any]) -> bool:
    """Whether an installed library had a hand in a class."""
    makers = [type(kind), *kind.__mro__, *map(type, own.values())]
    modules = [maker.__module__ for maker in makers]
    modules += [held.__module__ for held in own.values() if isinstance(held, types.FunctionType)]
    for name, held in own.items():
        if _is_note(name, held) and isinstance(held, dict):
            modules += [type(value).__module__ for value in held.values()]
    return any(map(is_installed, modules))


def _is_note(name: str, held: Any) -> bool:
    """Whether a member may be a library's note: it is neither code, nor plain, nor Python's."""
    if name in _OF_PYTHON or not (name.startswith("__") and name.endswith("__")):
        return False
    if isinstance(held, (*_FUNCTIONS, *_DESCRIPTORS, type)) or _is_plain(held):
        return False
    kind = type(held)
    contains = kind in {dict, list, tuple, set, frozenset}
    return contains or not (is_of_python(kind.__module__) or is_users(kind.__module__))


def _is_plain(held: Any) -> bool:
    """Whether a value is nothing but a few plain values."""
    if type(held) in {list, tuple, set, frozenset}:
        return all(type(item) in _SIMPLE for item in held)
    return type(held) in _SIMPLE


def _parts(held: Any) -> list[Any]:
    """Return the containers in a note: itself, or the attributes of an object."""
    if isinstance(held, (Mapping, tuple, list)):
        return [held]
    found = [_held_by(held, name) for name in _attribute_names(held)]
    return [part for part in found if isinstance(part, (dict, tuple, list))]


def _attribute_names(held: Any) -> list[str]:
    slots = [name for base in type(held).__mro__ for name in _slots(base)]
    return sorted({*attributes(held), *slots})


def _held_by(held: Any, name: str) -> Any:
    """Return an attribute of an object, without asking the object."""
    try:
        return object.__getattribute__(held, name)
    except AttributeError:
        return None


def _slots(base: type) -> tuple[str, ...]:
    slots = vars(base).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_table(part: Any) -> bool:
    """Whether a container holds an object of a library under each of its names."""
    values = list(part.values()) if isinstance(part, Mapping) else list(part)
    return bool(_keys(part)) and all(
        not isinstance(value, (*_FUNCTIONS, type))
        and not is_users(type(value).__module__)
        and type(value).__module__ != "builtins"
        and not _is_weak(value)
        for value in values
    )


def _is_weak(value: Any) -> bool:
    """Whether an object stands for one that it does not keep, as in a list of who is around."""
    return any(isinstance(_held_by(value, name), weakref.ref) for name in _attribute_names(value))


def _keys(part: Any) -> set[str]:
    """Return the names that a container has something for: by its keys, or by their own."""
    found = list(part) if isinstance(part, Mapping) else [_held_by(item, "name") for item in part]
    return set(found) if all(type(name) is str for name in found) else set()


def _names(kind: type) -> set[str]:
    """Return the names that stand in a class and in its bases, and in their code."""
    found: set[str] = set()
    for base in kind.__mro__:
        found |= annotations_of(base).keys()
        if is_users(base.__module__):
            found |= vars(base).keys()
            for held in vars(base).values():
                inner = _inner(held)
                if isinstance(inner, types.FunctionType):
                    found |= set(names_in(inner.__code__))
    return found


def _inner(held: Any) -> Any:
    """Return the function in a descriptor, without asking other objects."""
    parts = ("__func__", "fget", "func") if isinstance(held, _DESCRIPTORS) else ()
    return next((getattr(held, part) for part in parts if hasattr(held, part)), held)
