"""What the loss of an executor costs a stateful stream: with little state and with much.

A stream with so many keys loses one of three executors, with its agent, between two batches. The
time is from then to the end of the next batch, which has a thousand rows. Spark's operator reads
what the executor had from the checkpoint, Clonos's goes on with a standby: it should not matter how
much that is. Spark is given a twentieth of the keys, as it takes a minute for a million. All in one
process; quote ratios.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import clonos
from clonos import testing

ROWS = 10_000_000
FEW = 1_000
SPARKS_PART = 20
FILE_ROWS = 1_000_000
EXECUTORS = 3
PARTITIONS = 3
LOSSES = 5

INPUT = "id long"
STATE = "n long, note string"
OUTPUT = "id long, n long"
# With it a key's state takes some hundred bytes.
NOTE = "what a program keeps of a customer, a sensor or an order: 64 characters"
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Rows(StatefulProcessor):
    """Counts the rows of a key."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", STATE)

    def handleInputRows(self, key: Any, rows: Any, _times: Any) -> Iterator[Row]:
        n, _ = self.seen.get() or (0, NOTE)
        n += sum(1 for _ in rows)
        self.seen.update((n, NOTE))
        yield Row(id=key[0], n=n)


class Batches(clonos.BatchProcessor):
    """The same of all keys at once."""

    state_schema = STATE
    state_name = "seen"

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> tuple[pa.Table, pa.Table]:
        n = pc.add(pc.fill_null(state["n"], 0), rows.counts)
        note = pc.fill_null(state["note"], NOTE)
        return pa.table({"id": keys["id"], "n": n}), pa.table({"n": n, "note": note})


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    pytest.importorskip("google.protobuf", reason="Spark's own operator needs protobuf")
    from pyspark import cloudpickle
    from pyspark.sql import SparkSession

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    builder = SparkSession.builder.master(f"local-cluster[{EXECUTORS},1,1024]")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.stateStore.providerClass": ROCKS_DB,
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def theirs(df: Any) -> Any:
    return df.groupBy("id").transformWithState(Rows(), OUTPUT, "Update", "None")


def ours(df: Any) -> Any:
    return clonos.transform_with_state(
        df.groupBy("id"), Batches(), OUTPUT, "update", "none", uid="seen", flavour="arrow"
    )


class Stream:
    """A stream of files: each is a batch."""

    def __init__(self, spark: Any, folder: Path, how: Any) -> None:
        self.spark = spark
        self._files = 0
        self._folder = folder
        (folder / "in").mkdir(parents=True)
        reader = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
        output = how(reader.parquet(str(folder / "in")))
        writer = output.writeStream.format("noop").outputMode("update")
        self.query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()

    def give(self, first: int, count: int) -> None:
        """One more batch, of these keys; returns when it is done."""
        self._files += 1
        name = f"{self._files}.parquet"
        made = self._folder / name
        pq.write_table(pa.table({"id": pa.array(range(first, first + count))}), made)
        made.rename(self._folder / "in" / name)
        self.query.processAllAvailable()


def lose_one(spark: Any) -> None:
    """Kill an executor with its agent."""
    lost = testing.executors(spark)[0].pid
    testing.kill(lost, *testing.agents([lost]))


def recovery(stream: Stream, keys: int, losses: int, session: Any) -> tuple[float, float]:
    """Seconds from a loss to the end of the next batch, and of one without a loss: medians."""
    master = stream.spark.sparkContext._jsc.sc()
    few = min(FEW, keys)
    try:
        for first in range(0, keys, FILE_ROWS):
            stream.give(first, min(FILE_ROWS, keys - first))
        with_loss, without = [], []
        for lost in (False, True) * losses:
            testing.wait_until(
                lambda: master.getExecutorMemoryStatus().size() > EXECUTORS, "executors", 60
            )
            # A worker on each, and what it needs of state.
            stream.give(0, few)
            if session is not None:
                testing.wait_until(lambda: copies_are_made(session), "standbys", 120)
            if lost:
                lose_one(stream.spark)
            begun = time.monotonic()
            stream.give(0, few)
            (with_loss if lost else without).append(time.monotonic() - begun)
    finally:
        stream.query.stop()
    return statistics.median(with_loss), statistics.median(without)


def copies_are_made(session: Any) -> bool:
    return all(state.copies == 2 and not state.joining for state in session.stats().states)


_seconds: dict[tuple[str, str], float] = {}


@pytest.mark.timeout(1800)
@pytest.mark.benchmark(group="state: an executor lost between two batches")
@pytest.mark.parametrize("keys", ["few", "many"])
@pytest.mark.parametrize("operator", ["spark", "clonos"])
def test_recovery(
    benchmark: Any, spark: Any, tmp_path: Path, operator: str, keys: str, ratios: dict[str, float]
) -> None:
    many = ROWS if operator == "clonos" else ROWS // SPARKS_PART
    count = FEW if keys == "few" else many

    losses = LOSSES if benchmark.enabled else 1

    def work() -> tuple[float, float]:
        if operator == "spark":
            return recovery(Stream(spark, tmp_path, theirs), count, losses, None)
        with clonos.attach(spark) as session:
            return recovery(Stream(spark, tmp_path, ours), count, losses, session)

    lost, calm = benchmark.pedantic(work, rounds=1)
    benchmark.extra_info.update(keys=count, with_loss=round(lost, 2), without=round(calm, 2))
    _seconds[operator, keys] = lost
    if keys == "many" and (operator, "few") in _seconds:
        name = f"{operator}: {count:,} keys, {lost:.2f} s to the next output ({calm:.2f} s calm)"
        ratios[name] = lost / _seconds[operator, "few"]
