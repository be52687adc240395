"""What a function is: a fingerprint of what it does and of what it holds.

Two functions of one name may be two functions (made by one factory, two lambdas, two instances of
a callable class), and one name may stand for another function after a restart. A fingerprint
therefore covers, besides the bytecode, everything that the code refers to: closures, defaults,
bound arguments, the state of the instance, globals, and the user's own helper functions and classes
with all that these refer to. The state of any object is what a pickle of it would hold.

It ends where a library begins. A function or class of an installed package counts by its name, and
an object of one that cannot be pickled (a client, a lock) by its type and its functions. What was
not looked at is told, for those who must know two functions apart.

A fingerprint says that a function changed, and not what of it. So the label of an operator, which
stands in the header of its log, has a short hash of each of the function's parts behind its name.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from clonos import _held
from clonos._names import globals_in
from clonos._walk import Common, Walk

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# Between a label's name and its parts, between these, and between a part and its hash.
PARTS, NEXT, HASH = "\x01", "\x02", "="
PARTS_MAX = 32
# What is larger has no hash of its own: it would take as long again as the fingerprint.
LARGE = 1 << 20


class Fingerprint(NamedTuple):
    """64 bits of a function, and what they do not tell: the type of something that it holds."""

    code: int
    unseen: str | None


def code_fingerprint(fn: Callable[..., Any], version: str | None = None) -> int:
    """Return 64 bits that change when `fn` changes: its code, or anything that it refers to."""
    return fingerprint(fn, version).code


def fingerprint(fn: Callable[..., Any], version: str | None = None) -> Fingerprint:
    """Return what tells `fn` from other functions.

    Bytecode differs between Python versions, so fingerprints are compared only between equal
    versions (`PYTHON_VERSION`).

    Parameters
    ----------
    fn : callable
    version : str, optional
        The user's name for this version of the function: nothing else counts then.
    """
    walk = Walk(Common())
    if version is None:
        walk.root(fn)
    else:
        walk.note("version", version)
    digest = walk.result()
    return Fingerprint(int.from_bytes(digest[:8], "little"), walk.common.unseen)


def label(name: str, fn: Callable[..., Any], version: str | None = None) -> str:
    """Return a function's name with what it is made of.

    With `version`, the user's name for this version of it, nothing but that counts.
    """
    if version is not None:
        return name
    parts = [f"{part}{HASH}{digest}" for part, digest in _digests(fn)]
    return name + PARTS + NEXT.join(parts[:PARTS_MAX])


def _digests(fn: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    for part, value in _parts(fn):
        size = getattr(value, "nbytes", None)
        if (size if isinstance(size, int) else sys.getsizeof(value, 0)) > LARGE:
            continue
        walk = Walk(Common())
        walk.value(value, 0)
        yield part, walk.result()[:3].hex()


def _parts(fn: Any) -> Iterator[tuple[str, Any]]:
    """Yield all that the user can name and may have changed."""
    while isinstance(fn, functools.partial):
        for number, value in enumerate(fn.args):
            yield f"bound argument {number}", value
        for name, value in fn.keywords.items():
            yield f"bound argument {name}", value
        fn = fn.func
    fn = _held.attributes(fn).get("__wrapped__", fn)
    if type(fn) is types.MethodType:
        yield from _attributes(fn.__self__)
        fn = fn.__func__
    if not isinstance(fn, types.FunctionType):
        yield from _attributes(fn)
        fn = vars(type(fn)).get("__call__")
    if isinstance(fn, types.FunctionType):
        yield from _parts_of_function(fn)


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(owner, type | types.ModuleType):
        for name, value in sorted(_held.attributes(owner).items()):
            if not name.startswith("__"):
                yield f"attribute {name}", value


def _parts_of_function(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield "its code", fn.__code__
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield f"variable {name}", cell.cell_contents
        except ValueError:
            continue
    names = inspect.getfullargspec(fn).args
    defaults = fn.__defaults__ or ()
    for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        yield f"default of {name}", value
    for name, value in (fn.__kwdefaults__ or {}).items():
        yield f"default of {name}", value
    for name in sorted(globals_in(fn.__code__) & fn.__globals__.keys()):
        if not name.startswith("__"):
            yield f"global {name}", fn.__globals__[name]
