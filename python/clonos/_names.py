"""The names that stand in the code of functions."""

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
        for cell in getattr(candidate, "__closure__", None) or ():
            try:
                pending.append(cell.cell_contents)
            except ValueError:
                continue
    return False


def _code_of(fn: Callable[..., Any]) -> types.CodeType | None:
    code = getattr(fn, "__code__", None)
    if code is None:
        # A method, or an instance whose class can be called.
        method = getattr(fn, "__func__", None) or vars(type(fn)).get("__call__")
        code = getattr(method, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
