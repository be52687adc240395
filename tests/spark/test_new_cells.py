"""Queries that a program did not make before it was started again, beside those that it did."""

from __future__ import annotations

import random
from typing import Any

import pytest
from epochs import again, values

from clonos import causal
from clonos.errors import ReplayDivergence, find

pytestmark = pytest.mark.timeout(360)
ROWS = 60


def cells() -> tuple[Any, Any]:
    """Return two functions that have one name, as all lambdas of a place do."""
    return causal("double")(lambda x: x * 2.0), causal("double")(lambda _x: random.random())


@pytest.mark.parametrize("until", [ROWS, ROWS // 2])
@pytest.mark.parametrize("new_is", ["above", "below"])
def test_a_new_cell_takes_nothing_from_one_that_was_there(
    spark: Any, session: Any, new_is: str, until: int
) -> None:
    # With the half of them, there is a task for which nothing is recorded.
    rows = spark.range(0, ROWS, 1, 2).where(f"id < {until}")

    def old() -> Any:
        return values(rows.select("id", cells()[1]("id")))

    def new() -> Any:
        return values(rows.select("id", cells()[0]("id")))

    def both() -> Any:
        if new_is == "below":
            found = old()
            assert new() == [(x, 2.0 * x) for x in range(until)]
            return found
        # Nobody can tell whether this is the old one, changed: it is refused, and told what to do.
        with pytest.raises(Exception, match="REPLAY_DIVERGENCE") as refused:
            new()
        divergence = find(refused.value)
        assert isinstance(divergence, ReplayDivergence)
        assert "uid=" in str(divergence)
        found = old()
        # By now the old one is known to be there, so that the other is new.
        assert new() == [(x, 2.0 * x) for x in range(until)]
        return found

    first, second = again(session, old, both)
    assert second == first
