"""A function is what it does and what it holds; its fingerprint is the same in every process."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import pickle
import queue as queue_module
import random
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from held import MAKERS, broadcast, holder
from hypothesis import given
from hypothesis import strategies as st
from seeds import printed

from clonos import _pickled, _walk
from clonos._code import code_fingerprint, fingerprint
from clonos._pickled import stable_digest

PROMPT = "be brief"
LOCK = threading.Lock()


def helper(text: str) -> str:
    return text + PROMPT


def calls_helper(text: str) -> str:
    return helper(text).upper()


def takes_the_lock(x: int) -> int:
    with LOCK:
        return x


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
    answers = printed(program, seeds=3)
    assert len(answers) == 1


def test_equal_values_have_equal_pickles_whatever_they_share() -> None:
    one, other = str(10**20), str(10**20)
    assert one is not other
    assert stable_digest([one, one]) == stable_digest([one, other])
    assert stable_digest(threading.Lock()) is None


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_held_counts_by_its_state(name: str) -> None:
    make = MAKERS[name]
    found = of(holder(make(1)))
    assert of(holder(make(1))) == found
    assert of(holder(make(2))) != found
    if callable(make(1)):
        assert of(make(1)) != of(make(2))


def test_the_order_of_names_means_nothing() -> None:
    def made(names: str) -> Any:
        scale, function = Scale(0), holder(0)
        for name in names:
            for holds_names in (scale, function):
                setattr(holds_names, name, name)
        return scale, function

    assert of(holder(made("ab"))) == of(holder(made("ba")))
    assert of(holder(made("ab"))) != of(holder(made("ac")))


def test_what_is_held_counts_alike_in_every_process() -> None:
    program = Path(__file__).with_name("held.py")
    here = {name: of(holder(make(1))) for name, make in MAKERS.items()}
    for seed in (1, 2):
        ran = subprocess.run(
            [sys.executable, str(program)],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        )
        lines = set(ran.stdout.splitlines())
        if seed == 1:
            first = lines
    assert len(lines) == len(here)
    assert lines == first


SIMPLE = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
HELD: st.SearchStrategy[Any] = st.recursive(
    st.none() | SIMPLE | st.dates() | st.decimals(allow_nan=False),
    lambda held: (
        st.lists(held)
        | st.tuples(held, held)
        | st.dictionaries(st.text(), held)
        | st.builds(Scale, held)
        | st.builds(collections.deque, st.lists(held))
        | st.builds(lambda value: types.SimpleNamespace(value=value), held)
        | st.builds(lambda value: {"value": value}.get, held)
        | st.builds(lambda value: functools.partial(pow, value), held)
    ),
    max_leaves=8,
)


@given(HELD, HELD)
def test_values_have_one_fingerprint_if_they_have_one_pickle(one: Any, other: Any) -> None:
    # Written anew, so that nothing is shared in one and not in the other.
    assert of(holder(pickle.loads(pickle.dumps(one)))) == of(holder(one))
    in_order = [pickle.loads(pickle.dumps(value)) for value in (one, other)]
    if stable_digest(in_order[0]) != stable_digest(in_order[1]) and in_order[0] != in_order[1]:
        assert of(holder(one)) != of(holder(other))


def test_what_cannot_be_told_apart_is_told() -> None:
    assert fingerprint(plus(1)).unseen is None
    assert fingerprint(Scale([threading.Lock()])).unseen == "_thread.lock"
    assert fingerprint(holder(x for x in "ab")).unseen == "builtins.generator"
    # It is part of the module, by whose name it is found.
    assert fingerprint(takes_the_lock).unseen is None
    # What Spark's handles stand for does not decide about answers.
    assert fingerprint(holder(logging.getLogger("a"))).unseen is None


def test_a_client_counts_by_its_type_and_its_functions() -> None:
    def queue(size: int) -> Any:
        made = queue_module.Queue()
        made.put(size)
        return made

    assert of(holder(queue(1))) == of(holder(queue(2)))
    assert of(holder(queue(1))) != of(holder(threading.Event()))


def test_functions_of_libraries_count_by_their_names() -> None:
    # Some are methods of an object whose state goes on.
    def drawn() -> Any:
        return [random.random, random.randint, np.random.rand, len]

    before = of(holder(drawn()))
    for draw in drawn()[::2]:
        draw()
    assert of(holder(drawn())) == before


def test_a_broadcast_is_read_once_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held = broadcast({"a": 1})
    before = of(holder(held))
    assert not hasattr(held, "_value")
    Path(held._path).unlink()
    assert of(holder(held)) == before
    gone = broadcast({"a": 1})
    Path(gone._path).unlink()
    assert fingerprint(holder(gone)).unseen == "pyspark.core.broadcast.Broadcast"


def test_what_is_large_is_told_or_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [np.zeros(2000), np.ones(2000)]
    monkeypatch.setattr(_pickled, "BYTES_MAX", 10_000)
    monkeypatch.setattr(_walk, "BYTES_MAX", 10_000)
    assert {fingerprint(holder(array)).unseen for array in large} == {"numpy.ndarray"}
    monkeypatch.undo()
    monkeypatch.setattr(_walk, "VALUES_MAX", 50)
    many = [[{"key": [Scale(i), n]} for i in range(100)] for n in (1, 2)]
    assert of(holder(many[0])) != of(holder(many[1]))
    sets = [{(Scale(1).method, i, (n,)) for i in range(100)} for n in (1, 2)]
    assert of(holder(sets[0])) != of(holder(sets[1]))


def test_a_model_is_looked_at_in_little_time() -> None:
    words = {f"word {i}": {"n": i, "seen": [i]} for i in range(50_000)}
    model = Scale([np.zeros(10_000_000), words, [Scale(words) for _ in range(1_000)]])
    start = time.process_time()
    of(model)
    assert time.process_time() - start < 5


def test_an_attribute_is_no_global_of_the_same_name() -> None:
    """A script reads its arguments into globals, and other things have attributes of such names."""

    def program(day: str) -> dict[str, Any]:
        scope: dict[str, Any] = {"__name__": "__main__", "day": day, "real": day, "used": 1}
        exec(ATTRIBUTES, scope)
        return scope

    monday, tuesday = program("monday"), program("tuesday")
    for name in ("reads_attribute", "calls_method", "makes_object", "has_class"):
        assert code_fingerprint(monday[name]) == code_fingerprint(tuesday[name]), name
    for name in ("reads_global", "reads_in_class", "reads_inside"):
        assert code_fingerprint(monday[name]) != code_fingerprint(tuesday[name]), name


ATTRIBUTES = """
class Order:
    def __init__(self):
        self.day = "x"

def reads_attribute(x): return x.real + x.day
def calls_method(x): return x.day()
def makes_object(x): return Order().day
def has_class(x):
    class Inner:
        real = used
    return Inner.real
def reads_global(x): return x.real + day
def reads_in_class(x):
    class Inner:
        here = day
    return Inner.here
def reads_inside(x): return [lambda: day for _ in range(x)]
"""
