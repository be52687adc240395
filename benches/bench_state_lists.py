"""Keys that have gathered much in lists and maps, beside the same that have gathered little.

A first batch fills the list and the map of each of a hundred keys. The time is that of the batches
after it, with ten rows of each key, which append to the list, put a pair and look another one up.
All in one process; quote ratios. Spark's own operator takes minutes for the first batch.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import clonos

ROWS = 1_000_000
FEW = 1_000
KEYS = 100
PER_KEY = 10
BATCHES = 12
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

INPUT = "id long, n long"
OUTPUT = "id long, found long"
_seconds: dict[str, float] = {}


class Gathering(StatefulProcessor):
    """Keeps all that it has seen of a key, and looks at some of it."""

    def init(self, handle: Any) -> None:
        self.log = handle.getListState("log", "n long")
        self.last = handle.getMapState("last", "n long", "n long")

    def handleInputRows(self, key: Any, rows: Any, _times: Any) -> Iterator[Row]:
        found = 0
        for row in rows:
            self.log.appendValue((row.n,))
            self.last.updateValue((row.n,), (row.n,))
            found += self.last.containsKey((row.n // 2,))
        yield Row(id=key[0], found=found)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield session
    session.stop()


def stream(spark: SparkSession, folder: Path, first: int) -> float:
    """Run all batches; seconds of one of those after the first, the median."""
    begins = [0, *range(first, first + BATCHES * KEYS * PER_KEY, KEYS * PER_KEY)]
    for batch, (begin, end) in enumerate(itertools.pairwise(begins)):
        rows = spark.range(begin, end, 1, 1).selectExpr(f"id % {KEYS} id", f"id div {KEYS} n")
        rows.write.parquet(str(folder / f"in/{batch}"))
    df = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).parquet(f"{folder}/in/*")
    keys = df.groupBy("id")
    output = clonos.transform_with_state(keys, Gathering(), OUTPUT, "update", "none", uid="all")
    writer = output.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    query.awaitTermination()
    taken = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
    assert len(taken) == BATCHES
    return statistics.median(taken[1:]) / 1000


@pytest.mark.benchmark(group="state, long lists")
@pytest.mark.parametrize("much", [False, True], ids=["few", "many"])
def test_gathered(
    benchmark: Any, spark: SparkSession, tmp_path: Path, ratios: dict[str, float], much: bool
) -> None:
    first = ROWS if much else FEW
    taken = []
    with clonos.attach(spark):
        benchmark.pedantic(lambda: taken.append(stream(spark, tmp_path, first)), rounds=1)
    name = f"{first // KEYS:,} elements and pairs of each key"
    _seconds[name] = taken[0]
    ratios[f"{name}: {1000 * taken[0]:,.0f} ms a batch"] = min(_seconds.values()) / taken[0]
