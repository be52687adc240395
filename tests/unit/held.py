"""What functions hold: makers of objects that are equal for equal numbers, and only for those.

As a program it prints the fingerprint of a function that holds each of them.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import functools
import json
import operator
import pickle
import re
import tempfile
import types
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from pyspark.core.broadcast import Broadcast
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row
from pyspark.sql.functions import udf

from clonos import causal
from clonos._code import code_fingerprint

WORDS = ["one", "two", "three", "four", "five"]


class Date(dt.date):
    pass


class Number(decimal.Decimal):
    pass


class Array(np.ndarray[Any, Any]):
    pass


class Words(set[str]):
    pass


class Rules(dict[str, int]):
    pass


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Hidden:
    __slots__ = ("__n",)

    def __init__(self, n: int) -> None:
        self.__n = n

    def __call__(self, x: int) -> int:
        return x * self.__n


class Node:
    """Holds itself, by its children."""

    def __init__(self, n: int, depth: int) -> None:
        self.n = n
        self.words = set(WORDS)
        self.children = [Node(n, depth - 1)] if depth else []
        for child in self.children:
            child.parent = self
        self.parent: Node | None = None


class Refuses:
    def __init__(self, n: int) -> None:
        self.n = n

    def __reduce__(self) -> Any:
        raise TypeError(self)

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def holder(value: Any) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return value, x

    return function


def answer(n: int) -> Callable[[Any], Any]:
    return lambda x: (x, n)


def dispatched(n: int) -> Any:
    function = functools.singledispatch(answer(0))
    function.register(int)(answer(n))
    return function


def looped(n: int) -> Any:
    loop: list[Any] = [n, holder(n)]
    loop.append({"loop": loop})
    return loop


def broadcast(value: Any) -> Any:
    """Return a broadcast as the driver has it, without a Spark."""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        pickle.dump(value, file)
    made: Any = Broadcast(path=file.name)
    made._sc = types.SimpleNamespace(_encryption_enabled=False)
    return made


def exceptions(n: int) -> Any:
    """Two functions of the same bytecode, which catch exceptions in different places."""
    lines = ["try:", "  a = g(x)", "  b = h(a)", "  return b", "except ValueError:", "  return 0"]
    if n == 2:
        lines[:2] = ["a = g(x)", "try:"]
    scope: dict[str, Any] = {}
    exec("def f(x):\n" + "".join(f"  {line}\n" for line in lines), scope)
    return scope["f"]


MAKERS: dict[str, Callable[[int], Any]] = {
    "dict.get": lambda n: {"a": n}.get,
    "dict.__getitem__": lambda n: {"a": n}.__getitem__,
    "list.__len__": lambda n: [n].__len__,
    "str.format": lambda n: f"{{}} {n}".format,
    "re.match": lambda n: re.compile(str(n)).match,
    "Row": lambda n: Row(n=n),
    "rows": lambda n: [Row(n=n, words=set(WORDS))],
    "vector": lambda n: Vectors.dense([float(n)]),
    "broadcast": lambda n: broadcast({"n": n, "words": set(WORDS)}),
    "broadcasts": lambda n: collections.deque([broadcast([n])]),
    "date": lambda n: Date(2020, 1, n),
    "decimal": Number,
    "array": lambda n: np.array([n, 2]).view(Array),
    "words": lambda n: Words([*WORDS, str(n)]),
    "objects": lambda n: np.array([answer(n), set(WORDS)], dtype=object),
    "hidden slot": Hidden,
    "causal partial": lambda n: causal("long")(functools.partial(int.__add__, n)),
    "causal instance": lambda n: causal("long")(Hidden(n)),
    "causal method": lambda n: causal("long")(Hidden(n).__call__),
    "causal setup": lambda n: causal("long", setup=answer(n))(operator.add),
    "udf": lambda n: udf(answer(n)),
    "udf of an instance": lambda n: udf(Hidden(n)),
    "namespace": lambda n: types.SimpleNamespace(n=n, f=answer(0), words=set(WORDS)),
    "namespace of functions": lambda n: types.SimpleNamespace(f=answer(n)),
    "deque": lambda n: collections.deque([answer(n)]),
    "ordered": lambda n: collections.OrderedDict({n: answer(0), 3 - n: answer(0)}),
    "default": lambda n: collections.defaultdict(answer(n), {"words": set(WORDS)}),
    "vectorize": lambda n: np.vectorize(answer(n)),
    "singledispatch": dispatched,
    "decoder": lambda n: json.JSONDecoder(parse_float=[str, float][n - 1]).decode,
    "cached": lambda n: functools.lru_cache(answer(n)),
    "frame": lambda n: pd.DataFrame({"a": [str(i // n) for i in range(600_000)]}),
    "proxy": lambda n: types.MappingProxyType({"a": n, "f": answer(0)}),
    "keys": lambda n: {n: answer(0)}.keys(),
    "types": lambda n: [TypeVar(f"T{n}"), list[int], int | str],
    "enums": lambda n: {Colour.RED: n, Colour.BLUE: set(Colour)},
    "classes": lambda n: {Date, Number, Hidden, Node, answer(n), frozenset({Date, Number})},
    "tree": lambda n: Node(n, 30),
    "loop": looped,
    "loop of data": lambda n: collections.deque([looped(n), n]),
    "nested": lambda n: functools.reduce(lambda held, _: {"held": [held]}, range(60), n),
    "many": lambda n: [(((i,), 0), (i, i)) for i in range(150_000)] + [(((n,), 0), (n,))],
    "dict of many": lambda n: dict.fromkeys(range(150000), 0) | {"n": n},
    "long number": lambda n: [10**5000 + n],
    "exceptions": exceptions,
    "refuses": Refuses,
    "rules": lambda n: dict([("app", 1), ("apple", 2)][:: 3 - 2 * n]),
    "rules of functions": lambda n: dict([(1, answer(0)), ("b", answer(1))][:: 3 - 2 * n]),
    "long rules": lambda n: {i: [i] for i in range(2_000)[:: 3 - 2 * n]},
    "rules in rows": lambda n: [dict([("a", 1), ("b", 2)][:: 3 - 2 * n])] * 2_000,
    "counter": lambda n: collections.Counter("ab"[:: 3 - 2 * n]),
    "rules in a class": lambda n: Rules([("a", 1), ("b", 2)][:: 3 - 2 * n]),
}


def print_fingerprints() -> None:
    """Print the fingerprints of all functions."""
    for name, make in MAKERS.items():
        print(name, code_fingerprint(holder(make(1))))


if __name__ == "__main__":
    print_fingerprints()
