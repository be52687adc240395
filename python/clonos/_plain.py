"""Digests of plain functions, as Spark has pickled them, that are the same in each process.

A pickle is not loaded for it: what cloudpickle makes of the user's classes again would take the
place of those that the program has. Its operations say what it would make (`_opcodes`), and that is
digested. What holds one thing twice differs from what holds two equal ones, unless these are plain.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clonos._opcodes import NO_BROADCASTS, Made, Node, Part, constant_of, digest_of, evaluate, named

# Digests by those of the pickles; beyond, all are forgotten.
_KNOWN_MAX = 4_096
_known: dict[str, str] = {}
# Steps that are spent on the order of items that are part of a cycle, and rounds.
_STEPS_MAX = 1_000_000
_ROUNDS_MAX = 32
# Parts that a hash is fed with at once.
_AT_ONCE = 8_192
_CAUSAL = named("clonos._operators.udf", "CausalUDF")
# Where a pickled causal function has its mark, and how the text of a mark begins.
_WITH_MARK = b"str _groups"
_MARK = b"str clonos-use "


def plain_identity(pickled: bytes, broadcasts: Mapping[int, str] = NO_BROADCASTS) -> str:
    """Return what is the same for a function that is pickled again, in another process too.

    `broadcasts` says what the broadcasts are that it reads, by their numbers, which are of this
    process.
    """
    contents = repr(sorted(broadcasts.items())).encode() if broadcasts else b""
    as_it_is = hashlib.blake2b(pickled + contents, digest_size=16).hexdigest()
    known = _known.get(as_it_is)
    if known is None:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        try:
            known = _digest(evaluate(pickled, broadcasts)).hex()
        except Exception:  # noqa: BLE001, whatever is no pickle, or one of a later Python
            # All of its bytes count. Another process may then ask again, but no function is taken
            # for another one, whose answers would be wrong in silence.
            known = as_it_is
        _known[as_it_is] = known
    return known


def identity_over_causal(
    pickled: bytes,
    last: bytes,
    counted: Callable[[bytes], str],
    broadcasts: Mapping[int, str] = NO_BROADCASTS,
) -> str | None:
    """Return what `plain_identity` does for a plain function that refers to causal ones.

    Parameters
    ----------
    pickled : bytes
    last : bytes
        The last mark in it.
    counted : callable
        What a causal function counts as, by its mark.
    broadcasts : mapping of int to str, optional
        As of `plain_identity`.

    Returns
    -------
    str or None
        ``None`` if the function is causal itself, or that is not known.
    """
    try:
        made = evaluate(pickled, broadcasts)
        below = _nodes_below([made])
        if not below.keys() >= set(map(id, made.changed)):
            return None
        causal = {id(node): node for node in below.values() if node.parts[:1] == [_CAUSAL]}
        function: Part = made.parts[0]
        if isinstance(function, Node) and function.label == b"TUPLE":
            # What Spark pickles has the type of the result beside it.
            function = function.parts[0]
        marks = {number: _mark_of(node) for number, node in causal.items()}
        if id(function) in causal or b"str " + last not in marks.values():
            return None
        for number, node in causal.items():
            text = marks[number].removeprefix(b"str ")
            node.label, node.parts, node.items = b"causal", [counted(text).encode()], []
        reached = _nodes_below([made])
        made.changed = [node for node in made.changed if id(node) in reached]
        return _digest(made).hex()
    except Exception:  # noqa: BLE001, as above
        return None


def _mark_of(causal: Node) -> bytes:
    """Leaf with the mark of a pickled causal function."""
    state: Any = causal.parts[-1]
    place = state.parts.index(_WITH_MARK) + 1
    below = _nodes_below(state.parts[place : place + 1])
    leaves = (part for node in below.values() for part in node.parts if isinstance(part, bytes))
    return next(leaf for leaf in leaves if leaf.startswith(_MARK))


def _digest(made: Made) -> bytes:
    ranks = _ranks(made.sets)
    total = hashlib.blake2b(digest_size=16)
    numbers: dict[int, int] = {}
    pending: list[Part] = [made]
    pieces: list[bytes] = []
    while pending:
        part = pending.pop()
        plain = constant_of(part)
        if plain is None and isinstance(part, Node):
            number = numbers.get(id(part))
            if number is None:
                numbers[id(part)] = len(numbers)
                plain = b"node %b %d %d" % (part.label, len(part.parts), len(part.items))
                items = sorted(part.items, key=lambda item: _rank(item, ranks))
                pending += reversed(items)
                pending += reversed(part.parts)
            else:
                plain = b"again %d" % number
        pieces.append(plain or b"")
        if len(pieces) >= _AT_ONCE:
            total.update(digest_of(pieces))
            pieces.clear()
    if any(id(node) not in numbers for node in made.changed):
        raise ValueError("what was changed is not part of what was made")
    total.update(digest_of(pieces))
    return total.digest()


def _rank(part: Part, ranks: dict[int, bytes]) -> bytes:
    plain = constant_of(part)
    return ranks.get(id(part), b"") if plain is None else plain


def _ranks(sets: Iterable[Node]) -> dict[int, bytes]:
    """Return what the items of sets are put in order by: the same for equal ones in each process.

    Two different items may have the same, if they are part of a cycle: then their order is left to
    chance, and another process may take the function for another one.
    """
    items = [item for one in sets if len(one.items) > 1 for item in one.items]
    below = _nodes_below(items)
    holders: dict[int, list[Node]] = {number: [] for number in below}
    missing: dict[int, int] = {}
    for number, node in below.items():
        held = [part for part in (*node.parts, *node.items) if constant_of(part) is None]
        missing[number] = len(held)
        for part in held:
            holders[id(part)].append(node)
    ranks: dict[int, bytes] = {}
    # From those that hold no other node upwards, to all that lead to no cycle.
    ready = deque(node for number, node in below.items() if not missing[number])
    while ready:
        node = ready.popleft()
        ranks[id(node)] = _rank_of(node, ranks)
        for holder in holders[id(node)]:
            missing[id(holder)] -= 1
            if not missing[id(holder)]:
                ready.append(holder)
    _rank_cycles([node for number, node in below.items() if number not in ranks], ranks)
    return ranks


def _nodes_below(parts: Iterable[Part]) -> dict[int, Node]:
    """All nodes that are reached from parts, by their numbers, without plain ones."""
    found: dict[int, Node] = {}
    pending = list(parts)
    while pending:
        part = pending.pop()
        if isinstance(part, Node) and part.constant is None and id(part) not in found:
            found[id(part)] = part
            pending += part.parts
            pending += part.items
    return found


def _rank_of(node: Node, ranks: dict[int, bytes], before: bytes = b"") -> bytes:
    parts = [_rank(part, ranks) for part in node.parts]
    items = sorted(_rank(item, ranks) for item in node.items)
    return b"node " + digest_of([before, node.label, *parts, b"items", *items])


def _rank_cycles(nodes: list[Node], ranks: dict[int, bytes]) -> None:
    """Rank nodes by what they hold, then by the ranks of that, as long as it tells more apart."""
    steps = sum(len(node.parts) + len(node.items) for node in nodes)
    apart = 0
    for _ in range(max(2, min(_ROUNDS_MAX, _STEPS_MAX // max(steps, 1)))):
        before = {id(node): ranks.get(id(node), b"") for node in nodes}
        # All of one round see the round before, as their order is another one in each process.
        ranks.update({id(node): _rank_of(node, ranks, before[id(node)]) for node in nodes})
        found = len({ranks[id(node)] for node in nodes})
        if found == apart:
            break
        apart = found
