"""The names that stand in the code of functions, and what these find there."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the global names and attributes that code and the functions in it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def closure(fn: Any) -> Iterator[tuple[Any, ...]]:
    """Yield what each cell of a function holds: one value, or none (yet)."""
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            yield (cell.cell_contents,)
        except ValueError:
            yield ()


def docs(fn: types.FunctionType, names: set[str]) -> Iterator[str | None]:
    """Yield the texts of a function and of those that it names, which may have been set since."""
    yield fn.__doc__
    named = [fn.__globals__[name] for name in sorted(names & fn.__globals__.keys())]
    named += [value for held in closure(fn) for value in held]
    yield from (value.__doc__ for value in named if isinstance(value, types.FunctionType))


def mentions(fn: Callable[..., Any], name: str) -> bool:
    """Whether `name` stands in the code of `fn`, or of functions it names, of any depth."""
    seen: set[int] = set()
    pending: list[Any] = [fn]
    while pending:
        candidate = pending.pop()
        while isinstance(candidate, functools.partial):
            candidate = candidate.func
        code = _code_of(candidate) if callable(candidate) else None
        if code is None or id(code) in seen:
            continue
        seen.add(id(code))
        names = set(names_in(code))
        if name in names:
            return True
        scope = getattr(candidate, "__globals__", {})
        named = (scope[other] for other in names if other in scope)
        pending.extend(value for value in named if isinstance(value, types.FunctionType))
        pending.extend(value for held in closure(candidate) for value in held)
    return False


def _code_of(fn: Callable[..., Any]) -> types.CodeType | None:
    code = getattr(fn, "__code__", None)
    if code is None:
        # A method, or an instance whose class can be called.
        method = getattr(fn, "__func__", None) or vars(type(fn)).get("__call__")
        code = getattr(method, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
