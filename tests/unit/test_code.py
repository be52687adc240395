"""A function is what it does and what it holds; its fingerprint is the same in every process."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clonos._code import code_fingerprint
from clonos._pickled import stable_pickle

PROMPT = "be brief"


def helper(text: str) -> str:
    return text + PROMPT


def calls_helper(text: str) -> str:
    return helper(text).upper()


def plus(n: Any) -> Callable[[int], int]:
    def add(x: int) -> int:
        return x + int(n)

    return add


class Scale:
    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def __call__(self, x: int) -> int:
        return x * int(self.factor)

    def method(self, x: int) -> int:
        return self(x)


@dataclasses.dataclass(frozen=True)
class Setting:
    name: str
    words: frozenset[str]


def of(fn: Callable[..., Any]) -> int:
    return code_fingerprint(fn)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (plus(1), plus(100)),
        (functools.partial(pow, 2), functools.partial(pow, 3)),
        (Scale(1), Scale(2)),
        (Scale(1).method, Scale(2).method),
        (Scale(np.array([1])), Scale(np.array([2]))),
        (Scale(Setting("a", frozenset("bc"))), Scale(Setting("a", frozenset("bd")))),
        (lambda x, n=1: x + n, lambda x, n=2: x + n),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x + 1, lambda x: x - 1),
    ],
)
def test_what_a_function_holds_is_part_of_it(one: Any, other: Any) -> None:
    assert of(one) != of(other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: plus(1),
        lambda: functools.partial(pow, 2),
        lambda: Scale({"a": {"b", "c"}}),
        lambda: Scale(np.arange(5)).method,
        lambda: Scale(threading.Lock()),
    ],
)
def test_a_function_that_is_made_again_is_the_same(make: Any) -> None:
    assert of(make()) == of(make())


def test_globals_and_helpers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(calls_helper)
    monkeypatch.setitem(globals(), "PROMPT", "be polite")
    assert of(calls_helper) != before
    monkeypatch.undo()
    assert of(calls_helper) == before
    monkeypatch.setitem(globals(), "helper", lambda text: text)
    assert of(calls_helper) != before


def test_a_version_stands_for_everything_else() -> None:
    assert code_fingerprint(plus(1), "v1") == code_fingerprint(plus(2), "v1")
    assert code_fingerprint(plus(1), "v1") != code_fingerprint(plus(1), "v2")


def test_a_function_that_refers_to_itself_has_an_end() -> None:
    def down(n: int) -> int:
        return n and down(n - 1)

    holder: dict[str, Any] = {"fn": down}
    holder["self"] = holder
    assert of(down) == of(down)
    assert of(lambda: holder) == of(lambda: holder)


PROGRAM = """
    import collections, datetime, decimal, enum, pathlib, re, uuid
    from clonos._code import code_fingerprint

    class Colour(enum.Enum):
        RED = 1
        GREEN = 2
        BLUE = 3

    class Model:
        def __init__(self):
            self.words = {"one", "two", "three", "four"}
            self.pattern = re.compile("x+")

        def __call__(self, text):
            return text in {"five", "six", "seven"}

    held = [Model(), Colour.RED, decimal.Decimal("1.5"), uuid.UUID(int=7), pathlib.Path("/a")]
    held += [datetime.timedelta(1), collections.Counter("hello"), frozenset("abcd"), {"k": {1, 2}}]
    held += [{Colour.RED, Colour.GREEN, Colour.BLUE}]

    def score(text):
        return held, text

    print(code_fingerprint(score))
"""


def test_fingerprints_do_not_depend_on_the_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    answers = {
        subprocess.run(
            [sys.executable, str(program)],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(answers) == 1


def test_equal_values_have_equal_pickles_whatever_they_share() -> None:
    one, other = str(10**20), str(10**20)
    assert one is not other
    assert stable_pickle([one, one]) == stable_pickle([one, other])
    assert stable_pickle(threading.Lock()) is None
