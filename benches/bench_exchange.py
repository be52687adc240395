"""Two Python operators with a shuffle between them: Spark's, and `clonos.exchange`.

Four million rows, narrow (2 columns) and wide (20 columns, half of them strings), without and with
one reading of the clock and one service result recorded per row. All in one process and by turns;
quote ratios.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import clonos

ROWS = 4_000_000
PARTITIONS = 8
ROUNDS = 5
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

Batches = Iterator[pa.RecordBatch]
NARROW = "id long, v long"
WIDE = ", ".join([f"c{i} long" for i in range(10)] + [f"c{i} string" for i in range(10, 20)])
RECORDED = "id long, v long, at long, flagged boolean"


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
    yield session
    session.stop()


def narrow(batches: Batches) -> Batches:
    for batch in batches:
        ids = batch.column(0)
        mixed = pc.bit_wise_xor(pc.multiply(ids, 2_654_435_761), 12_345)
        yield pa.RecordBatch.from_arrays([ids, mixed], names=["id", "v"])


def wide(batches: Batches) -> Batches:
    for batch in batches:
        ids = batch.column(0)
        number = pc.cast(pc.bit_wise_and(pc.multiply(ids, 7_919), 0xFFFFFF), pa.string())
        text = pc.binary_join_element_wise("item-", number, "")
        columns = [pc.add(ids, i) for i in range(10)] + [text] * 10
        yield pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(20)])


def answers(ids: pa.Array) -> pa.Array:
    """Stand for a service that answers for a whole batch."""
    return pc.greater(pc.bit_wise_and(pc.multiply(ids, 31), 1_023), 100)


def flagged(read_clock: Callable[[], int], ask: Callable[[pa.Array], pa.Array]) -> Any:
    """Make an operator that reads the clock and asks the service once per row."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            ids = batch.column(0)
            when = pa.array([read_clock() for _ in range(len(ids))])
            columns = [ids, pc.multiply(ids, 3), when, ask(ids)]
            yield pa.RecordBatch.from_arrays(columns, names=["id", "v", "at", "flagged"])

    return run


def count(batches: Batches) -> Batches:
    yield pa.RecordBatch.from_arrays([pa.array([sum(map(len, batches))])], names=["n"])


def plain(spark: SparkSession, first: Any, schema: str, key: str) -> None:
    """Run it with Spark's own shuffle."""
    rows = spark.range(0, ROWS, 1, 4).mapInArrow(first, schema).repartition(PARTITIONS, key)
    assert sum(row.n for row in rows.mapInArrow(count, "n long").collect()) == ROWS


def causal(spark: SparkSession, first: Any, schema: str, key: str) -> None:
    """Run it with an exchange in the shuffle's place."""
    rows = clonos.map_in_arrow(spark.range(0, ROWS, 1, 4), first, schema, uid="first")
    counted = clonos.map_in_arrow(
        clonos.exchange(rows, PARTITIONS, key), count, "n long", uid="count"
    )
    assert sum(row.n for row in counted.collect()) == ROWS


def measure(benchmark: Any, work: Any, *args: Any) -> None:
    benchmark.pedantic(work, args=args, rounds=ROUNDS, warmup_rounds=1)


@pytest.mark.benchmark(group="exchange, narrow")
def test_narrow_spark(benchmark: Any, spark: SparkSession) -> None:
    measure(benchmark, plain, spark, narrow, NARROW, "id")


@pytest.mark.benchmark(group="exchange, narrow")
def test_narrow_clonos(benchmark: Any, spark: SparkSession) -> None:
    with clonos.attach(spark):
        measure(benchmark, causal, spark, narrow, NARROW, "id")


@pytest.mark.benchmark(group="exchange, narrow")
def test_narrow_clonos_frames_kept(benchmark: Any, spark: SparkSession) -> None:
    with clonos.attach(spark, spill_policy="availability"):
        measure(benchmark, causal, spark, narrow, NARROW, "id")


@pytest.mark.benchmark(group="exchange, wide")
def test_wide_spark(benchmark: Any, spark: SparkSession) -> None:
    measure(benchmark, plain, spark, wide, WIDE, "c0")


@pytest.mark.benchmark(group="exchange, wide")
def test_wide_clonos(benchmark: Any, spark: SparkSession) -> None:
    with clonos.attach(spark):
        measure(benchmark, causal, spark, wide, WIDE, "c0")


@pytest.mark.benchmark(group="exchange, wide")
def test_wide_clonos_frames_kept(benchmark: Any, spark: SparkSession) -> None:
    with clonos.attach(spark, spill_policy="availability"):
        measure(benchmark, causal, spark, wide, WIDE, "c0")


@pytest.mark.benchmark(group="exchange, wide, more than 4 GiB in flight")
@pytest.mark.parametrize("memory", ["32MiB", "12GiB"])
def test_in_flight(
    benchmark: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROWS", 20_000_000 if benchmark.enabled else ROWS)
    with clonos.attach(spark, spill_policy="availability", compression="none", memory=memory):
        benchmark.pedantic(causal, args=(spark, wide, WIDE, "c0"), rounds=3)


@pytest.mark.benchmark(group="exchange, a time and a result recorded per row")
def test_recorded_spark(benchmark: Any, spark: SparkSession) -> None:
    measure(benchmark, plain, spark, flagged(time.time_ns, answers), RECORDED, "id")


@pytest.mark.benchmark(group="exchange, a time and a result recorded per row")
def test_recorded_clonos(benchmark: Any, spark: SparkSession) -> None:
    def ask(ids: pa.Array) -> Any:
        return clonos.call(answers, ids)

    with clonos.attach(spark):
        measure(benchmark, causal, spark, flagged(clonos.time_ns, ask), RECORDED, "id")
