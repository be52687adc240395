"""What tests of epochs share: one that is run again, and a function that never answers the same."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyspark import cloudpickle

from clonos import causal

# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Failed(Exception):
    """Ends an epoch that is to be run again."""


def fail() -> None:
    raise Failed


@causal("double")
def drawn(_x: Any) -> float:
    return random.random()


def values(df: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


def again(session: Any, *runs: Callable[[], Any]) -> list[Any]:
    """Run an epoch that fails after each of `runs` but the last; with one alone, that twice."""
    found = []
    for run in runs[:-1] or runs:
        with suppress(Failed), session.epoch("again"):
            found.append(run())
            fail()
    with session.epoch("again"):
        found.append(runs[-1]())
    return found
