"""What a refusal of changed code can name: the parts of a function, each with a hash of its own."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from clonos._code import LARGE, label

PROMPT = "Is this {} spam?"
TABLE = {"a": [1, 2]}


def helper(text: str) -> str:
    return PROMPT.format(text)


def ask(text: str, times: int = 2, *, strict: bool = True) -> Any:
    return [helper(text), TABLE, times, strict]


class Asker:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, text: str) -> float:
        return len(text) * self.rate

    def method(self, text: str) -> float:
        return len(text) * self.rate


def with_threshold(threshold: Any) -> Any:
    return lambda n: n > threshold


def parts(fn: Any, version: str | None = None) -> dict[str, str]:
    name, _, rest = label("ask", fn, version).partition("\x01")
    assert name == "ask"
    return dict(part.rsplit("=", 1) for part in rest.split("\x02") if part)


def changed(one: Any, other: Any) -> set[str]:
    before, after = parts(one), parts(other)
    assert before.keys() == after.keys()
    return {part for part in before if before[part] != after[part]}


def test_all_that_a_user_can_name_is_a_part() -> None:
    assert set(parts(ask)) == {
        "its code",
        "default of times",
        "default of strict",
        "global helper",
        "global TABLE",
    }
    assert set(parts(Asker(1.0))) == {"attribute rate", "its code"}
    assert set(parts(Asker(1.0).method)) == {"attribute rate", "its code"}
    bound = parts(functools.partial(ask, "x", times=3))
    assert {"bound argument 0", "bound argument times", "global helper"} <= set(bound)


def test_only_what_changed_has_another_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(with_threshold(1), with_threshold(2)) == {"variable threshold"}
    assert changed(with_threshold([1, {2}]), with_threshold([1, {2}])) == set()
    assert changed(Asker(1.0), Asker(2.0)) == {"attribute rate"}
    assert changed(lambda n: n + 1, lambda n: n + 2) == {"its code"}
    before = parts(ask)
    # What a helper reads is the helper's.
    monkeypatch.setitem(globals(), "PROMPT", "Is this {} ham?")
    monkeypatch.setitem(TABLE, "a", [3])
    after = parts(ask)
    assert {part for part in before if before[part] != after[part]} == {
        "global helper",
        "global TABLE",
    }


def test_what_has_no_parts_has_a_name() -> None:
    assert label("ask", ask, "v2") == "ask"
    assert parts(len) == {}
    assert "variable threshold" not in parts(with_threshold(np.zeros(LARGE)))
