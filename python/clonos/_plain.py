"""Digests of plain functions, as Spark has pickled them, that are the same in each process.

A pickle is not loaded for it: what cloudpickle makes of the user's classes again would take the
place of those that the program has.
"""

from __future__ import annotations

import hashlib
import pickletools
import re
from typing import Any

# What cloudpickle calls a class by, in this process alone; a ``None`` follows it.
_TRACKER = re.compile(r"[0-9a-f]{32}")
# The file of a cell of a notebook, which has the number of the process in it.
_CELL = re.compile(r".*/ipykernel_\d+/\d+\.py|<ipython-input-.*>")
_SKIPPED = {"PROTO", "FRAME", "STOP"}
_PUTS = {"BINPUT", "LONG_BINPUT", "PUT"}
_GETS = {"BINGET", "LONG_BINGET", "GET"}
_SETS = {"FROZENSET", "ADDITEMS"}
_OF_MARK = {"TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS", "OBJ", "INST", "POP_MARK"}
# Digests by those of the pickles; beyond, all are forgotten.
_KNOWN_MAX = 4_096
_known: dict[str, str] = {}


def plain_identity(pickled: bytes) -> str:
    """Return what is the same for a function that is pickled again, in another process too."""
    as_it_is = hashlib.blake2b(pickled, digest_size=16).hexdigest()
    known = _known.get(as_it_is)
    if known is None:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        try:
            known = hashlib.blake2b(repr(_tokens(pickled)).encode(), digest_size=16).hexdigest()
        except Exception:  # noqa: BLE001, whatever is no pickle
            known = as_it_is
        _known[as_it_is] = known
    return known


def _tokens(pickled: bytes) -> list[Any]:
    """Operations of a pickle with sets in an order of their own, and nothing of this process."""
    tokens: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for operation, argument, _place in pickletools.genops(pickled):
        name = operation.name
        if name in _SKIPPED:
            continue
        if name == "MEMOIZE" or name in _PUTS:
            number = len(memo) if name == "MEMOIZE" else argument
            memo[number] = tokens[-1] if _is_constant(tokens[-1]) else ("memo", number)
        elif name in _GETS:
            tokens.append(memo.get(argument, ("memo", argument)))
        elif name == "MARK":
            marks.append(len(tokens))
            tokens.append(("mark",))
        else:
            if name == "NONE" and tokens and _is_tracker(tokens[-1]):
                tokens[-1] = ("class",)
            if name in _SETS or name in _OF_MARK:
                items = tokens[marks.pop() + 1 :]
                if name in _SETS and all(map(_is_constant, items)):
                    tokens[len(tokens) - len(items) :] = sorted(items, key=repr)
            is_cell = isinstance(argument, str) and _CELL.fullmatch(argument)
            tokens.append(("cell",) if is_cell else ("value", name, argument))
    return tokens


def _is_constant(token: Any) -> bool:
    """Whether a token stands for a value that is made of nothing else."""
    return token[0] == "value" and token[2] is not None


def _is_tracker(token: Any) -> bool:
    return _is_constant(token) and isinstance(token[2], str) and bool(_TRACKER.fullmatch(token[2]))
