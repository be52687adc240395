"""Each kind of UDF over a million rows, plain and causal; with a checkpoint, replayed, and behind a
shuffle, where each row is marked.

Plain and causal run in turns, so that a busy machine slows both; quote the ratios, which are
printed at the end and kept with each measurement. Plain functions have workers that have run
nothing else.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import udf_kinds
from pyspark.sql import DataFrame, SparkSession
from udf_kinds import KINDS, plain_apart, run, table

import clonos

ROWS = 1_000_000
# Of few rounds the median goes by a tenth from run to run.
ROUNDS = 15
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(udf_kinds)
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.mark.parametrize("name", KINDS)
def test_kind(benchmark: Any, spark: SparkSession, ratios: dict[str, float], name: str) -> None:
    with clonos.attach(spark):
        beside_plain(benchmark, spark, ratios, name)


@pytest.mark.parametrize("name", ["row: boolean", "arrow: doubles"])
def test_with_checkpoint(
    benchmark: Any, spark: SparkSession, ratios: dict[str, float], name: str, tmp_path: Path
) -> None:
    with clonos.attach(spark, checkpoint_dir=tmp_path):
        beside_plain(benchmark, spark, ratios, name, "with a checkpoint")


@pytest.mark.parametrize("name", ["row: boolean", "arrow: doubles"])
def test_replayed(benchmark: Any, spark: SparkSession, ratios: dict[str, float], name: str) -> None:
    with clonos.attach(spark) as session, session.epoch("replayed"):
        beside_plain(benchmark, spark, ratios, name, "replayed")


@pytest.mark.parametrize("name", ["row: boolean", "arrow: doubles"])
def test_behind_a_shuffle(
    benchmark: Any, spark: SparkSession, ratios: dict[str, float], name: str
) -> None:
    with clonos.attach(spark):
        rows = table(spark, ROWS).repartition(2)
        beside_plain(benchmark, spark, ratios, name, "behind a shuffle", rows)


def beside_plain(
    benchmark: Any,
    spark: SparkSession,
    ratios: dict[str, float],
    name: str,
    how: str = "recorded",
    rows: DataFrame | None = None,
) -> None:
    """Measure a causal function, and before each round the plain one.

    All columns of `rows` are read beside the function; of the table, if it is not given, none.
    """
    kind = KINDS[name]
    others = () if rows is None else ("*",)
    rows = table(spark, ROWS) if rows is None else rows
    function, causal_function = plain_apart(spark, kind), kind.recorded()
    plain_seconds: list[float] = []

    def plain() -> None:
        begun = time.perf_counter()
        run(rows, function, kind.columns, others)
        plain_seconds.append(time.perf_counter() - begun)

    def recorded() -> None:
        run(rows, causal_function, kind.columns, others)

    # JIT compilers, Python workers and page caches are warm before the first measurement.
    for _ in range(4 if benchmark.enabled else 0):
        plain()
        recorded()
    plain_seconds.clear()
    benchmark.group = how
    benchmark.pedantic(recorded, setup=plain, rounds=ROUNDS)
    if benchmark.enabled:
        # Round by round, as neighbours in time have the same machine.
        turns = zip(plain_seconds, benchmark.stats.stats.data, strict=True)
        ratio = statistics.median(before / after for before, after in turns)
        benchmark.extra_info["plain, seconds"] = statistics.median(plain_seconds)
        benchmark.extra_info["speed, plain is 1"] = ratio
        ratios[f"{how}: {name}"] = ratio
