"""Uses of causal functions: one for each place of the program that applies one.

A use is told apart from others by a token of this process. What a restarted program finds again is
decided by the registry: by the function, and by the order of uses in the plan that Spark executes.
The plan is searched for the *mark* of each use, which is part of what Spark pickles.

A function with one answer per value keeps its answers by operator and code, whichever use asks. Its
uses are one, so that Spark sees one function in them, as it does in plain ones: a cached frame is
found again, and what stands twice in a query is called once.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clonos._code import PYTHON_VERSION
from clonos._opcodes import NO_BROADCASTS
from clonos._plain import identity_over_causal, plain_identity
from clonos.errors import ConfigError

_COUNTER_BITS = 24
_base = secrets.randbits(63 - _COUNTER_BITS) << _COUNTER_BITS
_numbers = itertools.count(1)
# Token of all uses that keep no log of their own.
SHARED = 0
_MARK = re.compile(
    rb"clonos-use ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9.]+) (named|default) ([^\n]*)\n"
)


class Placed(NamedTuple):
    """A use that was found in a plan, with hashes of what it is asked over.

    `over` is of the plan below it, `tables` of what its arguments are made of there; `exact` and
    `shape` are what a restarted program knows that plan by, `data` what tables of its own are in
    it.
    """

    operator: str
    code: int
    python: str
    token: int
    named: bool
    over: int = 0
    tables: int = 0
    exact: int = 0
    shape: int = 0
    data: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """One use of an operator; travels to the workers.

    `code` is the fingerprint of the function, `token` the name of the use in this process, and
    `mark` what is found of it in a plan. `named` says that the user gave the operator its name.
    """

    operator: str
    code: int
    token: int
    mark: str
    named: bool = False


def new_use(operator: str, code: int, named: bool = False, *, shared: bool = False) -> Use:
    """Return another use of `operator`, whose function has the fingerprint `code`.

    A `shared` one is the same each time.
    """
    token = SHARED if shared else _base | (next(_numbers) % (1 << _COUNTER_BITS))
    named_mark = "named" if named else "default"
    mark = f"clonos-use {token:016x} {code:016x} {PYTHON_VERSION} {named_mark} {operator}\n"
    return Use(operator, code, token, mark, named)


def find_mark(pickled: bytes) -> Placed | None:
    """Return the use whose mark stands in what Spark pickled, if it is one with a log."""
    found = _MARK.findall(pickled)
    if not found:
        return None
    # Marks before the last are of causal functions that this one refers to.
    token, code, python, named, operator = found[-1]
    if int(token, 16) == SHARED:
        return None
    return Placed(
        operator.decode(), int(code, 16), python.decode(), int(token, 16), named == b"named"
    )


def function_identity(pickled: bytes, broadcasts: Mapping[int, str] = NO_BROADCASTS) -> str:
    """Return what is the same for a function that is made again, of what Spark pickled.

    A causal one is its operator and its code: it has another mark each time. Plain ones that refer
    to it are told apart by what else they do. `broadcasts` are as of `plain_identity`.
    """
    found = list(_MARK.finditer(pickled))
    if not found:
        return plain_identity(pickled, broadcasts)
    last = found[-1][0]
    plain = None
    if b"CausalUDF" in pickled:
        plain = identity_over_causal(pickled, last, _counted, broadcasts)
    return plain or _counted(last)


def _counted(mark: bytes) -> str:
    """What a causal function counts as in the plan of another, by its mark."""
    ((_token, code, _python, _named, operator),) = _MARK.findall(mark)
    return f"{operator.decode()} {code.decode()}"


def check_uid(uid: str | None) -> None:
    """Refuse names of operators that cannot be kept apart from the names of their logs.

    Raises
    ------
    ConfigError
        If there is a ``#``, a ``~`` or a control character in it, or nothing.
    """
    if uid is not None and (not uid or re.search(r"[#~\x00-\x1f]", uid)):
        message = f"uid={uid!r} must not be empty nor contain '#', '~' or control characters"
        raise ConfigError(message, "CONFIG")
