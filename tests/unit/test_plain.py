"""Identities of plain functions: the same in each process, and of no other function."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeds import printed

from clonos._plain import plain_identity

cloudpickle = pytest.importorskip("pyspark.cloudpickle")

HELD = """
import abc, enum, typing, weakref
from pyspark import cloudpickle
from clonos._plain import plain_identity

class Colour(enum.Enum):
    RED = "r"; GREEN = "g"; BLUE = "b"; GREY = "y"

T = typing.TypeVar("T")

class Box(typing.Generic[T]):
    first: T

class Shape(abc.ABC):
    pass

class Square: pass
class Circle: pass
class Line: pass

for one in (Square, Circle, Line):
    Shape.register(one)

class Peer:
    def __init__(self, name):
        self.name, self.peers = name, set()
    def __hash__(self):
        return hash(self.name)

ring = [Peer(str(n)) for n in range(9)]
for n, peer in enumerate(ring):
    peer.peers |= {ring[n - 1], ring[n * 4 % 9]}

def even(n): return n == 0 or odd(n - 1)
def odd(n): return n > 0 and even(n - 1)

held = {HELD}

def wanted(x):
    return x in {CONSTANT} or held == x

print(plain_identity(cloudpickle.dumps((wanted, "boolean"))))
"""


@pytest.mark.parametrize(
    ("held", "constant"),
    [
        ("1", '{("a", 1), ("b", 2), ("c", 3), ("d", 4)}'),
        ("1", '{"a", None, "b", True, "c", False, "d"}'),
        ('{("a", 1), ("b", 2), ("c", 3), ("d", 4)}', "()"),
        ('{"a", None, "b", "c", "d", "e"}', "()"),
        ("{str(n) for n in range(3_000)}", "()"),
        ("{(str(n), None) for n in range(3_000)}", "()"),
        ('{frozenset({"a", "b"}), frozenset({"c", "d"}), frozenset({("e", None)})}', "()"),
        ("set(Colour)", "()"),
        ("{Colour.RED: set(Colour), Colour.BLUE: {1, 'a', Square}}", "()"),
        ("Box[int]", "()"),
        ("(Box, Box())", "()"),
        ("Shape", "()"),
        ("{even, odd, len, int}", "()"),
        ("{lambda: 1, lambda: 2, lambda: 3}", "()"),
        ("set(ring)", "()"),
    ],
)
def test_a_plain_function_is_one_whatever_texts_hash_to(
    tmp_path: Path, held: str, constant: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(HELD.replace("{HELD}", held).replace("{CONSTANT}", constant))
    assert len(printed(program, seeds=3)) == 1


def identity(held: Any) -> str:
    return plain_identity(cloudpickle.dumps((made(held), "boolean")))


def made(held: Any) -> Callable[[Any], bool]:
    def wanted(x: Any) -> bool:
        return bool(held == x)

    return wanted


def with_default(text: str) -> Callable[..., Any]:
    def wanted(x: Any, key: str = text, other: Any = None) -> Any:
        return x, key, other

    return wanted


@pytest.mark.parametrize(
    "make",
    [
        with_default,
        lambda text: made({text: None}),
        lambda text: made((text, None)),
        lambda text: made([text, None]),
        lambda text: made({(text, None, None)}),
        lambda text: made(("Box", None, (), False, False, text)),
        lambda text: eval(f"lambda x: (x, {text!r}, None)"),
    ],
)
def test_texts_like_names_of_classes_tell_functions_apart(make: Any) -> None:
    one, other = (
        plain_identity(cloudpickle.dumps((make(digit * 32), "int"))) for digit in ("0", "1")
    )
    assert one != other


def test_files_of_cells_are_left_out_of_code_alone() -> None:
    cells = [f"/tmp/ipykernel_{number}/{number}.py" for number in (11, 22)]
    assert identity(cells[0]) != identity(cells[1])
    scopes: list[dict[str, Any]] = [{"__name__": "__main__"} for _ in cells]
    for cell, scope in zip(cells, scopes, strict=True):
        exec(compile("def wanted(x): return x", cell, "exec"), scope)
    one, other = (plain_identity(cloudpickle.dumps(scope["wanted"])) for scope in scopes)
    assert one == other


def test_what_is_shared_is_not_what_is_equal() -> None:
    shared: list[int] = []
    assert identity([shared, shared]) != identity([[], []])
    word, same = (bytes([97, 98]).decode() for _ in range(2))
    assert identity((word, word)) == identity((word, same))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 3)
    | st.sampled_from(["a", "b", b"a", 1.0, "0" * 32]),
    lambda part: (
        st.lists(part, max_size=3)
        | st.lists(part, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), part, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_other_values_are_other_functions(one: Any, other: Any) -> None:
    # `pickle` would tell apart what is shared, so it is copied by its text.
    one, other = eval(repr(one)), eval(repr(other))
    assert (identity(one) == identity(other)) == (repr(one) == repr(other))


@given(st.sets(st.text(max_size=2) | st.integers() | st.tuples(st.text(max_size=2)) | st.none()))
def test_sets_count_by_their_items(items: set[Any]) -> None:
    mixed = list(items)
    random.shuffle(mixed)
    assert identity(items) == identity(set(mixed))
    assert identity(items) != identity(items | {"another"})
    assert identity(items) != identity(frozenset(items))


def test_what_is_not_understood_counts_as_it_is() -> None:
    # An operation for objects that stand outside of the pickle.
    outside = b"\x80\x05\x8c\x01aQ."
    assert plain_identity(outside) != plain_identity(outside.replace(b"a", b"b"))
    assert plain_identity(b"no pickle") == plain_identity(b"no pickle")


def test_deep_and_long_values_are_digested() -> None:
    # By hand, as no pickler goes that deep.
    deep = b"]" * 50_000 + b"a" * 49_999 + b"."
    assert plain_identity(b"\x80\x05" + deep) != plain_identity(b"\x80\x05]" + deep[:-1] + b"a.")
    many = [(n, str(n)) for n in range(50_000)]
    assert plain_identity(pickle.dumps(many)) != plain_identity(pickle.dumps(many[1:]))


def test_broadcasts_count_by_what_they_hold() -> None:
    # As PySpark pickles them: by their numbers in this process.
    def reading(number: int) -> bytes:
        return b"cpyspark.core.broadcast\n_from_id\n(I%d\ntR." % number

    assert plain_identity(reading(1)) != plain_identity(reading(2))
    assert plain_identity(reading(1), {1: "a"}) == plain_identity(reading(2), {2: "a", 1: "b"})
    assert plain_identity(reading(1), {1: "a"}) != plain_identity(reading(1), {1: "b"})
