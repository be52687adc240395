"""The names that stand in the code of functions, and what these find there."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from clonos._held import is_of_python

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


# Beyond, a function is taken to ask.
_LOOKED_AT_MAX = 2_000


def asks_for_keys(fn: Callable[..., Any]) -> bool:
    """Whether `fn` may ask for an idempotency key, itself or in what it calls.

    In doubt it may: counting equal rows costs little, and a key that changes is a second payment.
    """
    from clonos._services import idempotency_key

    seen: set[int] = set()
    pending: list[Any] = [fn]
    while pending:
        candidate = pending.pop()
        if candidate is idempotency_key:
            return True
        if id(candidate) in seen or not _may_call(candidate):
            continue
        seen.add(id(candidate))
        if len(seen) > _LOOKED_AT_MAX:
            return True
        if isinstance(candidate, functools.partial):
            pending += [candidate.func, *candidate.args, *candidate.keywords.values()]
            continue
        if isinstance(candidate, type):
            pending += [*map(_called_by, vars(candidate).values()), *candidate.__bases__]
            continue
        code = _code_of(candidate)
        pending.append(getattr(candidate, "__self__", None))
        if code is None or not isinstance(candidate, types.FunctionType | types.MethodType):
            pending += [type(candidate), *getattr(candidate, "__dict__", {}).values()]
        if code is None:
            continue
        names = set(names_in(code))
        if idempotency_key.__name__ in names:
            return True
        pending += _found(candidate, names)
    return False


def _called_by(method: Any) -> Any:
    """Return the function of a method, a property, or what else stands in a class."""
    return getattr(method, "__func__", None) or getattr(method, "fget", None) or method


def _may_call(value: Any) -> bool:
    """Whether a value may lead to a call of ours: it is not Python's own, nor plain."""
    of = value if isinstance(value, type | types.FunctionType) else type(value)
    module = getattr(of, "__module__", None)
    return isinstance(value, types.MethodType | functools.partial) or not is_of_python(str(module))


def _found(fn: Any, names: set[str]) -> Iterator[Any]:
    """What `names` are to a function, also within modules that it names."""
    scope = getattr(fn, "__globals__", {})
    for value in [scope[name] for name in names if name in scope]:
        if isinstance(value, types.ModuleType):
            held = vars(value)
            yield from (held[name] for name in names if name in held)
        else:
            yield value
    yield from (value for held in closure(fn) for value in held)
    yield from getattr(fn, "__defaults__", None) or ()


def _code_of(fn: Callable[..., Any]) -> types.CodeType | None:
    code = getattr(fn, "__code__", None)
    if code is None:
        # A method, or an instance whose class can be called.
        method = getattr(fn, "__func__", None) or vars(type(fn)).get("__call__")
        code = getattr(method, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
