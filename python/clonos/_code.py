"""A fingerprint of the user's code, so that a log is not replayed into another function."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from clonos import _core

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def code_fingerprint(fn: Callable[..., Any]) -> int:
    """Return 64 bits that change when the body of `fn` changes.

    Bytecode, names and constants count, those of nested functions too; values of closures and of
    other functions do not. Bytecode differs between Python versions, so fingerprints are compared
    only between equal versions (`PYTHON_VERSION`).
    """
    code = _code_of(fn)
    if code is None:
        name = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__name__)}"
        return _core.bytes_fingerprint(name.encode())
    return _core.bytes_fingerprint(b"\0".join(_parts(code)))


def _code_of(fn: Callable[..., Any]) -> CodeType | None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(fn, "__code__", None)
    if code is None:
        # An instance whose class can be called.
        code = getattr(vars(type(fn)).get("__call__"), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _parts(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield "\0".join(code.co_names + code.co_varnames).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        elif isinstance(constant, frozenset):
            # The order of a set's elements depends on the process.
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()


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
        names = set(_names(code))
        if name in names:
            return True
        scope = getattr(candidate, "__globals__", {})
        pending.extend(scope[other] for other in names if inspect.isfunction(scope.get(other)))
        cells = getattr(candidate, "__closure__", None) or ()
        pending.extend(cell.cell_contents for cell in cells if _is_filled(cell))
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_filled(cell: Any) -> bool:
    try:
        return inspect.isfunction(cell.cell_contents)
    except ValueError:
        return False
