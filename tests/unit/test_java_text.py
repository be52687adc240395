"""Text of values as Spark's pickled UDFs give it; what the JVM writes is noted beside each."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos._worker.java_text import java_text
from clonos._worker.pickled import without_surrogates


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e10, "1.0E10"),
        (-123456789.125, "-1.23456789125E8"),
        (1e-5, "1.0E-5"),
        (0.001, "0.001"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (-0.0, "-0.0"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (True, "true"),
        (Decimal("1E+3"), "1E+3"),
        (Decimal("-0.00"), "0.00"),
        ([1.5, None, True, ["x", Decimal("1.10")]], "[1.5, null, true, [x, 1.10]]"),
        ({1}, "[1]"),
        ({"b": 1, "a": [True]}, "{a=[true], b=1}"),
        ({True: None}, "{true=null}"),
        ({2**40: 1, -1: 2}, "{-1=2, 1099511627776=1}"),
        ({-1: 2, 2**40: 1}, "{1099511627776=1, -1=2}"),
        (
            {f"k{n}": n for n in range(20)},
            (
                "{k0=0, k1=1, k2=2, k3=3, k4=4, k11=11, k5=5, k10=10, k6=6, k13=13, k7=7, k12=12, "
                "k8=8, k15=15, k9=9, k14=14, k17=17, k16=16, k19=19, k18=18}"
            ),
        ),
        ([], "[]"),
        ({}, "{}"),
    ],
)
def test_it_is_the_text_of_the_object_that_spark_unpickles(value: Any, text: str) -> None:
    assert java_text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_read_again_as_itself(value: float) -> None:
    text = java_text(value)
    assert float(text) == value
    assert "." in text
    assert "e" not in text


def test_what_has_no_such_text_stays() -> None:
    for value in ("text", 5, None, (1, 2), b"x"):
        assert java_text(value) is value


def test_each_unpaired_surrogate_is_one_replacement_character() -> None:
    value = ["a\ud800\udc00b", {"k\udfff": ("\ud800", 1)}]
    assert without_surrogates(value) == ["a\ufffd\ufffdb", {"k\ufffd": ("\ufffd", 1)}]
