"""What tests of ordinary programs share: ways to mark a function, and a world that changes."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.functions import udf

from clonos import causal

ROWS = 30
WORLD = Path(tempfile.gettempdir(), f"ordinary-{os.getpid()}")
Mark = Callable[..., Callable[[Any], Any]]
# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Failed(Exception):
    """Ends an epoch that is to be run again."""


def world() -> int:
    """Differs between the first and the second run, as a clock or a service would."""
    return int(WORLD.read_text())


def as_plain(returnType: Any = "string") -> Callable[[Any], Any]:
    return udf(returnType=returnType)


def per_row(returnType: Any = "string") -> Callable[[Any], Any]:
    return causal(returnType)


def per_value(returnType: Any = "string") -> Callable[[Any], Any]:
    return lambda fn: causal(udf(returnType=returnType)(fn))


def values(df: Any) -> list[str]:
    """Rows in an order of their own; nan is equal to itself in text."""
    return sorted(map(repr, df.collect()))


def people(spark: Any) -> Any:
    names = ["Ann", "Bob", None, "Dan", "Eve"]
    rows = [(i, names[i % 5], i % 3) for i in range(ROWS)]
    return spark.createDataFrame(rows, "id long, name string, team int")


def scorer(mark: Mark) -> Any:
    @mark("long")
    def score(x: Any) -> Any:
        return None if x is None else int(x) * 7 % 5 + world()

    return score


def check(session: Any, program: Callable[[Any, Mark], Any], mark: Mark) -> None:
    """Compare with plain PySpark; then, in a changed world, with what its failed epoch recorded."""
    WORLD.write_text("0")
    expected = repr(program(session.spark, as_plain))
    name = program.__name__
    with contextlib.suppress(Failed), session.epoch(name):
        assert repr(program(session.spark, mark)) == expected
        live = session.stats().totals.live
        raise Failed
    assert live
    WORLD.write_text("1000")
    with session.epoch(name):
        assert repr(program(session.spark, mark)) == expected
        assert session.stats().totals.live == live, "nothing ran live the second time"
