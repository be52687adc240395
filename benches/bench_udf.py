"""A trivial boolean function over two million rows: plain, causal, with a checkpoint, and replayed.

The function costs next to nothing, so what is measured is the price of recording. All four run in
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

ROWS = 2_000_000
ROUNDS = 7
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def is_even(n: int) -> bool:
    return n % 2 == 0


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    # JIT compilers, Python workers and page caches are warm before the first measurement.
    with clonos.attach(session):
        for _ in range(3):
            count(session, udf("boolean")(is_even))
            count(session, causal("boolean", uid="warm")(is_even))
    yield session
    session.stop()


def count(spark: SparkSession, function: Callable[..., Any]) -> None:
    """Run the function over all rows."""
    flagged = spark.range(0, ROWS, 1, 4).select(function("id").alias("b"))
    assert flagged.where("b").count() == ROWS // 2


@pytest.mark.benchmark(group="2 million rows")
def test_plain_udf(benchmark: Any, spark: SparkSession) -> None:
    benchmark.pedantic(count, args=(spark, udf("boolean")(is_even)), rounds=ROUNDS)


@pytest.mark.benchmark(group="2 million rows")
def test_causal(benchmark: Any, spark: SparkSession) -> None:
    with clonos.attach(spark):
        recorded = causal("boolean", uid="recorded")(is_even)
        benchmark.pedantic(count, args=(spark, recorded), rounds=ROUNDS)


@pytest.mark.benchmark(group="2 million rows")
def test_causal_with_checkpoint(benchmark: Any, spark: SparkSession, tmp_path: Any) -> None:
    with clonos.attach(spark, checkpoint_dir=tmp_path):
        recorded = causal("boolean", uid="recorded")(is_even)
        benchmark.pedantic(count, args=(spark, recorded), rounds=ROUNDS)


@pytest.mark.benchmark(group="2 million rows")
def test_replayed(benchmark: Any, spark: SparkSession) -> None:
    with clonos.attach(spark) as session, session.epoch("replayed"):
        recorded = causal("boolean", uid="recorded")(is_even)
        count(spark, recorded)
        benchmark.pedantic(count, args=(spark, recorded), rounds=ROUNDS)
