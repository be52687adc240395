"""A class counts by what the user wrote in it, whoever makes classes of that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pytest
from held import holder
from held_classes import MAKERS, declared, library
from seeds import printed

from clonos._addresses import classes_by_address, without_addresses
from clonos._code import code_fingerprint, fingerprint


def of(value: Any) -> int:
    return code_fingerprint(holder(value))


@pytest.mark.parametrize("name", MAKERS)
def test_a_class_of_a_library_counts_by_what_is_declared(name: str) -> None:
    make = MAKERS[name]
    assert of(make(1)) == of(make(1))
    assert of(make(1)) != of(make(2))
    assert fingerprint(holder(make(1))).unseen is None


def test_classes_of_libraries_count_alike_in_every_process() -> None:
    program = Path(__file__).with_name("held_classes.py")
    answers = printed(program)
    assert len(answers) == 1
    assert len(answers.pop().splitlines()) == len(MAKERS)


def test_a_class_that_was_used_is_what_it_was() -> None:
    kind: Any = declared({"a": int}, a=1)
    before = of(kind)
    kind(a=3)
    assert of(kind) == before


def test_a_used_pydantic_model_is_what_it_was() -> None:
    pydantic = pytest.importorskip("pydantic")
    kind = pydantic.create_model("Model", __module__=__name__, a=(int, 1))
    before = of(kind)
    made = kind(a=2)
    made.a = 3
    assert kind.__signature__
    assert of(kind) == before


def test_a_class_that_a_library_keeps_to_itself_is_told() -> None:
    assert fingerprint(holder(declared({"a": int}))).unseen is None
    kind = library.Closed("Kind", (), {"__module__": "__main__", "__qualname__": "Kind"})
    assert fingerprint(holder(kind)).unseen == "__main__.Kind"


def typed(n: int) -> Any:
    return TypedDict("Typed", {"a": [int, str][n - 1]})  # type: ignore[operator]


def annotated(n: int) -> Any:
    class Annotated:
        pass

    Annotated.__annotations__ = {"a": [int, str][n - 1]}
    return Annotated


def annotated_in_order(n: int) -> Any:
    fields = [["a", "b"], ["b", "a"]][n - 1]
    return dataclasses.make_dataclass("Made", fields, namespace={"__module__": __name__})


def annotated_function(n: int) -> Any:
    def function(x: Any) -> Any:
        return x

    function.__annotations__["x"] = [int, str][n - 1]
    return function


def with_text(n: int) -> Any:
    return type("Prompt", (), {"__doc__": f"Answer in {n} words.", "__module__": __name__})


def of_a_metaclass(n: int) -> Any:
    class Meta(type):
        def answer(cls) -> int:
            return cls.number

        number = n

    return Meta("Made", (), {"__module__": __name__})


def named(n: int) -> Any:
    return NamedTuple("Named", [("a", [int, str][n - 1])])


def function_with_text(n: int) -> Any:
    def function() -> None:
        pass

    function.__doc__ = str(n)

    def asks() -> str | None:
        return function.__doc__

    return asks


@pytest.mark.parametrize(
    "make",
    [
        typed,
        annotated,
        annotated_in_order,
        annotated_function,
        with_text,
        of_a_metaclass,
        named,
        function_with_text,
    ],
)
def test_what_is_declared_counts(make: Callable[[int], Any]) -> None:
    assert of(make(1)) == of(make(1))
    assert of(make(1)) != of(make(2))
    assert fingerprint(holder(make(1))).unseen is None


class Default:
    """Has its address in its text."""


def test_texts_that_python_makes_of_defaults_do_not_count() -> None:
    def made(default: Any) -> Any:
        @dataclasses.dataclass(eq=False)
        class Made:
            a: Any = default

        return Made

    one, other = made(Default()), made(Default())
    assert one.__doc__ != other.__doc__
    assert of(one) == of(other)


def test_a_text_of_a_function_that_nobody_reads_does_not_count() -> None:
    def made(text: str) -> Any:
        def function() -> None:
            pass

        function.__doc__ = text
        return function

    assert of(made("a")) == of(made("b"))


def test_addresses_of_classes_are_their_names() -> None:
    kind = type("Kind", (), {"__module__": "made"})
    classes = classes_by_address()
    text = f"Kind:{id(kind)} of {hex(id(kind))}"
    assert without_addresses(text, classes) == "Kind:made.Kind of made.Kind"
    for other in (f"{id(kind)}", f"Kind {id(kind)}0", f"Kind x{id(kind)}", "Kind 0123456789"):
        assert without_addresses(other, classes) == other
