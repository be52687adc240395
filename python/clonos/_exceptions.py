"""Exceptions as pickle takes them apart, so that they come back as they were.

Python makes one again by its constructor, from its `args`. One that made its text of what it was
given, or that must be given names, is then another, or none.
"""

from __future__ import annotations

import contextlib
import copy
import re
import types
from typing import Any

from clonos.errors import ReplayDivergence

_ATTRIBUTES = (types.MemberDescriptorType, types.GetSetDescriptorType)
# Restored by themselves, or of the process alone; `obj` is what an attribute was not found in.
_APART = {"__dict__", "__weakref__", "__traceback__", "__cause__", "__context__", "args", "obj"}
# Of an object without a text of its own.
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
_CHAIN = ("__cause__", "__context__", "__suppress_context__")
# What an exception came of is recorded up to here: a long chain is more than pickle can nest.
_CHAIN_MAX = 50


def reduced(error: BaseException, depths: dict[int, int]) -> Any:
    """What pickle is to write of an exception, as ``__reduce__`` returns it.

    ``NotImplemented`` where the exception's own way is the better one. `depths` is the pickler's:
    how many exceptions came of one, by its id.
    """
    if _goes_its_own_way(error):
        return NotImplemented
    depth = depths.get(id(error), 0)
    for came_of in (error.__cause__, error.__context__):
        depths.setdefault(id(came_of), depth + 1)
    links = _CHAIN if depth < _CHAIN_MAX else _CHAIN[2:]
    # What a group was made of is not what its constructor was given.
    given = error.args
    if isinstance(error, BaseExceptionGroup):
        given = (error.message, list(error.exceptions))
    chain = {name: getattr(error, name) for name in links}
    state = (error.args, _attributes(error), dict(error.__dict__), chain)
    made = _made_its_own_way(error, given) or (_made, (type(error), given))
    return *made, state, None, None, _restore


def is_same(first: BaseException, second: BaseException) -> bool:
    """Whether two exceptions look the same to who catches them."""
    if type(first) is not type(second):
        return False
    texts = (_ADDRESS.sub("0x", str(error)) for error in (first, second))
    return next(texts) == next(texts)


def _goes_its_own_way(error: BaseException) -> bool:
    kind = type(error)
    own: list[Any] = [kind.__reduce__, kind.__reduce_ex__, kind.__setstate__]
    # The class that a method of Python's own belongs to.
    owners = [getattr(way, "__objclass__", kind) for way in own]
    if all(owner.__module__ == "builtins" for owner in owners):
        return False
    try:
        again = copy.copy(error)
        same = again.args == error.args and again.__dict__ == error.__dict__
        return same and is_same(again, error)
    except Exception:  # noqa: BLE001 - whatever a constructor raises that is given too little
        return False


def _made_its_own_way(error: BaseException, given: tuple[Any, ...]) -> tuple[Any, Any] | None:
    """How an exception is made that has no constructor, such as that of pydantic."""
    with contextlib.suppress(Exception):
        _made(type(error), given)
        return None
    try:
        own: Any = error.__reduce__()
        make, parts = own
        return (make, parts) if is_same(make(*parts), error) else None
    except Exception:  # noqa: BLE001 - then it cannot be recorded, which is said where it is tried
        return None


def _attributes(error: BaseException) -> dict[str, Any]:
    """What an exception has outside of its ``__dict__``, such as `errno`, and slots."""
    found: dict[str, Any] = {}
    for kind in type(error).__mro__:
        for name, attribute in vars(kind).items():
            if isinstance(attribute, _ATTRIBUTES) and name not in _APART | {*_CHAIN, *found}:
                with contextlib.suppress(AttributeError):
                    found[name] = attribute.__get__(error)
    # To Python's own, None is something else than nothing.
    return {name: value for name, value in found.items() if value is not None}


def _made(kind: type[BaseException], given: tuple[Any, ...]) -> BaseException:
    for base in kind.__mro__:
        new = vars(base).get("__new__")
        # The program's own may do as the constructor does.
        if isinstance(new, types.BuiltinFunctionType):
            error: BaseException = new(kind, *given)
            return error
    raise TypeError(kind)


def _restore(error: BaseException, state: tuple[Any, ...]) -> None:
    args, attributes, held, chain = state
    # Its class may refuse to be changed, as frozen data classes do.
    for name, value in (("args", args), *attributes.items(), *chain.items()):
        # What a group was made with is there, and cannot be set.
        with contextlib.suppress(AttributeError, TypeError):
            BaseException.__setattr__(error, name, value)
    error.__dict__.update(held)


class NotRecorded:
    """Stands in an exception for what cannot be pickled, such as its connection.

    It has the text of what it stands for, so that the exception's is the same, and nothing else.
    """

    def __init__(self, kind: str, text: str, shown: str) -> None:
        self._kind = kind
        self._text = text
        self._shown = shown

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._shown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        from clonos._services import current

        message = f"{name} of a {self._kind} is asked for, which cannot be pickled with its error"
        raise current.get().fail(ReplayDivergence(message, "REPLAY_DIVERGENCE"))


def stand_in(value: Any) -> tuple[Any, ...]:
    """What pickle is to write in an exception in place of `value`."""
    kind = type(value).__qualname__
    try:
        return NotRecorded, (kind, str(value), repr(value))
    except Exception:  # noqa: BLE001 - whatever it raises when it is asked for its text
        return NotRecorded, (kind, kind, kind)
