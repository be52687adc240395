"""The names that stand in the code of functions, and what these find there."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

# The last two are of classes inside of functions.
_LOADS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the global names and attributes that code and the functions in it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def globals_in(code: types.CodeType) -> set[str]:
    """Return the names that code and the functions in it look for among the globals.

    An attribute may have the name of a global that no code reads.
    """
    names = {each.argval for each in dis.get_instructions(code) if each.opname in _LOADS_GLOBAL}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= globals_in(constant)
    return names


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
