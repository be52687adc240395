"""One answer per value beside one per row and a plain UDF: few distinct arguments, and many.

The function costs next to nothing, so what is measured is the price of sharing answers. All run in
turn in one process, so that a busy machine slows all of them; quote ratios.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import clonos
from clonos import causal

ROWS = 1_000_000
ROUNDS = 5
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def is_even(n: int) -> bool:
    return n % 2 == 0


KINDS: dict[str, Callable[[], Any]] = {
    "plain": lambda: udf("boolean")(is_even),
    "per row": lambda: causal("boolean", uid="row", per="row")(is_even),
    "per value": lambda: causal("boolean", uid="value", per="value")(is_even),
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    with clonos.attach(session):
        # JIT compilers, Python workers and page caches are warm before the first measurement.
        for make in KINDS.values():
            count(session, make(), ROWS)
        yield session
    session.stop()


def count(spark: SparkSession, function: Callable[..., Any], distinct: int) -> None:
    """Run the function over all rows."""
    keys = spark.range(0, ROWS, 1, 4).selectExpr(f"id % {distinct} AS key")
    assert keys.select(function("key").alias("b")).where("b").count() == ROWS // 2


@pytest.mark.parametrize("distinct", [1_000, ROWS])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.benchmark(group="1 million rows")
def test_rows(benchmark: Any, spark: SparkSession, kind: str, distinct: int) -> None:
    benchmark.pedantic(count, args=(spark, KINDS[kind](), distinct), rounds=ROUNDS)
