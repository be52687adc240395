"""Columns of a group as pandas has them: what the function could tell apart has two images."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row

from clonos._worker.groups import _multiset

DAY = dt.date(2026, 1, 1)


def told(*values: Any) -> list[Any]:
    """What a group with these values in its one column is known by."""
    column = pd.Series(list(values), dtype=object)
    return [part.to_pylist() for part in _multiset([(column,)])]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([{"x": 1}], [{"y": 1}]),
        ([{"x": 1, "y": 2}], [{"y": 2, "x": 1}]),
        ([{"x": 1}, {"x": 1, "y": None}], [{"x": 1, "y": None}] * 2),
        ([{}], [None]),
        ([{"x": {"y": 1}}], [{"x": {"z": 1}}]),
        ([np.array([{"x": 1}])], [np.array([{"y": 1}])]),
        ([np.array([{"x": np.array([1])}])], [np.array([{"x": np.array([2])}])]),
        ([[{"x": 1}]], [[{"y": 1}]]),
        ([Row(m={"x": 1})], [Row(m={"y": 1})]),
        ([{"x": None}], [{"x": float("nan")}]),
        (["a", None], ["a", float("nan")]),
        (["a", b"b"], [b"a", "b"]),
        ([1, 1.5], [1.0, 1.5]),
        ([DAY, dt.datetime(2026, 1, 1, 5)], [DAY, DAY]),
        ([Decimal(1), 2], [1, Decimal(2)]),
        ([(1,)], [[1]]),
        ([np.array([])], [None]),
        ([np.array([None], dtype=object)], [np.array([])]),
        ([np.array(["a", None])], [np.array(["a"])]),
        ([np.array([2**60, 1])], [np.array([2**60 + 1, 1])]),
        (["\ud800"], ["\ud801"]),
    ],
)
def test_what_a_function_can_tell_apart_is_told_apart(one: list[Any], other: list[Any]) -> None:
    assert told(*one) != told(*other)
    assert told(*one) == told(*one)
    # The same rows in another order, and with others beside them.
    assert told(*one, *other) == told(*reversed([*one, *other]))
    assert told(*one, None) != told(*other, None)


def test_arrays_are_told_by_their_numbers_and_not_by_what_their_batch_made_of_them() -> None:
    # Where one array of a batch has a null, all of them come as floats.
    with_null = np.array([1.0, np.nan])
    assert told(np.array([1, 2]), with_null) == told(np.array([1.0, 2.0]), with_null)
    flags = np.array([True, None], dtype=object)
    assert told(np.array([True]), flags) == told(np.array([True], dtype=object), flags)
