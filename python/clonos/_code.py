"""What a function is: a fingerprint of what it does and of what it holds.

Two functions of one name may be two functions (made by one factory, two lambdas, two instances of
a callable class), and one name may stand for another function after a restart. A fingerprint
therefore covers, besides the bytecode, everything that the code refers to: closures, defaults,
bound arguments, the state of the instance, globals, and the user's own helper functions and classes
with all that these refer to. The state of any object is what a pickle of it would hold.

It ends where a library begins. A function or class of an installed package counts by its name, and
an object of one that cannot be pickled (a client, a lock) by its type and its functions. What was
not looked at is told, for those who must know two functions apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from clonos._walk import Common, Walk

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


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
