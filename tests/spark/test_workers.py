"""Python workers outlive tasks: what they keep of them, and what they do not."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException

from clonos import causal

QUERIES = 6
pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Model:
    """What a function holds, in a cycle, as the globals of a function of a notebook are."""

    def __init__(self) -> None:
        self.itself = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        alive = sys.__dict__.setdefault("clonos_test_models", [])
        alive.append(weakref.ref(self))

    def alive(self, _row: Any) -> str:
        models = sum(model() is not None for model in sys.__dict__["clonos_test_models"])
        return f"{models} {gc.get_freeze_count()}"


@pytest.mark.parametrize("per", ["row", "value"])
def test_libraries_are_left_out_of_the_collection_and_functions_are_not(
    spark: Any, session: Any, per: Any
) -> None:
    model = Model()
    told = causal("string", per=per)(model.alive)
    for _ in range(QUERIES):
        rows = spark.range(0, 8, 1, 4).select(told("id").alias("told")).collect()
        for row in rows:
            models, frozen = map(int, row.told.split())
            # Its own, and for the moment that of the task before.
            assert models <= 2
            assert frozen > 10_000


@causal("double")
def divided(row: int) -> float:
    return 1 / row


@causal("double", concurrency=2)
async def divided_later(row: int) -> float:
    return 1 / row


@pytest.mark.parametrize("function", [divided, divided_later])
def test_a_traceback_begins_at_the_code_of_the_user(spark: Any, function: Any) -> None:
    with pytest.raises(PythonException) as raised:
        spark.range(3).select(function("id")).collect()
    text = str(raised.value)
    assert "ZeroDivisionError" in text
    assert f"in {function.func.__name__}\n    return 1 / row" in text
    assert "clonos/_worker/" not in text
