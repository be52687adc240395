"""A stateful processor over a stream: Spark's own operator, and `clonos.transform_with_state`.

Five batches of 200,000 rows, ten of each of 20,000 keys, with the processor of PySpark's manual: it
counts readings, and those that were too hot so far. Spark keeps its state in RocksDB. The time is
that of the batches after the first, in which processes start. All in one process; quote ratios.

A stream that only shuffles the same rows and has no operator shows what Spark takes for itself:
nothing on top of it can be faster.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import clonos

ROWS = 200_000
PER_KEY = 10
BATCHES = 5
PARTITIONS = 2
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

INPUT = "id string, temperature long, number long"
OUTPUT = "id string, count long, hot long"
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_runs = itertools.count()


class Rows(StatefulProcessor):
    """Counts readings, and hot ones in state."""

    def init(self, handle: Any) -> None:
        self.hot = handle.getValueState("hot", "count long")

    def handleInputRows(self, key: Any, rows: Any, _times: Any) -> Iterator[Row]:
        count = 0
        (hot,) = self.hot.get() or (0,)
        for row in rows:
            if row.temperature is not None:
                count += 1
                if row.temperature > 100:
                    hot += 1
        self.hot.update((hot,))
        yield Row(id=key[0], count=count, hot=hot)


class ClockRows(Rows):
    """Reads the clock for each row, too."""

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        def timed() -> Iterator[Any]:
            for row in rows:
                clonos.time_ns()
                yield row

        yield from super().handleInputRows(key, timed(), times)


class Frames(Rows):
    """The same of frames."""

    def handleInputRows(self, key: Any, rows: Any, _times: Any) -> Iterator[pd.DataFrame]:
        count = 0
        (hot,) = self.hot.get() or (0,)
        for frame in rows:
            count += frame.count().get("temperature")
            hot += int(frame.loc[frame["temperature"] > 100].count().get("temperature"))
        self.hot.update((hot,))
        yield pd.DataFrame({"id": key, "count": count, "hot": hot})


class Batches(clonos.BatchProcessor):
    """The same of all keys at once."""

    state_schema = "count long"
    state_name = "hot"

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> tuple[pa.Table, pa.Table]:
        temperature = rows["temperature"]
        new = rows.aggregate(
            count=(temperature, "count"), hot=(pc.greater(temperature, 100), "sum")
        )
        hot = pc.add(pc.fill_null(state["count"], 0), pc.fill_null(new["hot"], 0))
        output = pa.table({"id": keys["id"], "count": new["count"], "hot": hot})
        return output, pa.table({"count": hot})


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    pytest.importorskip("google.protobuf", reason="Spark's own operator needs protobuf")
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", PARTITIONS)
        .config("spark.sql.streaming.stateStore.providerClass", ROCKS_DB)
        .getOrCreate()
    )
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield session
    session.stop()


@pytest.fixture
def source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a file for each batch."""
    folder = tmp_path_factory.mktemp("state")
    keys = max(1, ROWS // PER_KEY)
    for batch in range(BATCHES):
        rows = spark.range(0, ROWS, 1, 1).selectExpr(
            f"concat('sensor-', id % {keys}) id", "(id * 7919) % 150 temperature", "id number"
        )
        rows.write.parquet(str(folder / f"in/{batch}"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def theirs(df: Any, processor: Any) -> Any:
    grouped = df.groupBy("id")
    frames = isinstance(processor, Frames)
    run = grouped.transformWithStateInPandas if frames else grouped.transformWithState
    return run(processor, OUTPUT, "Update", "None")


def ours(df: Any, processor: Any) -> Any:
    flavour: Any = "pandas" if isinstance(processor, Frames) else "row"
    if isinstance(processor, Batches):
        flavour = "arrow"
    return clonos.transform_with_state(
        df.groupBy("id"), processor, OUTPUT, "update", "none", uid="hot", flavour=flavour
    )


def stream(spark: SparkSession, folder: Path, how: Callable[[Any, Any], Any], of: Any) -> float:
    """Run all batches; seconds of those after the first."""
    reader = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
    output = how(reader.parquet(str(folder / "in/*")), of)
    writer = output.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / f"checkpoint-{next(_runs)}")).start()
    query.awaitTermination()
    taken = [
        progress["durationMs"]["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]
    assert len(taken) == BATCHES
    return sum(taken[1:])


def measure(benchmark: Any, ratios: dict[str, float], name: str, work: Callable[[], float]) -> None:
    taken = []
    benchmark.pedantic(lambda: taken.append(work()), rounds=1)
    per_second = ROWS * (BATCHES - 1) / min(taken)
    benchmark.extra_info["rows_per_second"] = round(per_second)
    _speeds[name] = per_second
    flavour = name.split(",", maxsplit=1)[0]
    # Spark has no operator of this kind: against its own of Rows.
    flavour = {"batches": "rows", "no operator": "rows"}.get(flavour, flavour)
    plain = _speeds.get(f"{flavour}, Spark")
    if plain:
        ratios[f"{name}: {per_second:,.0f} rows/s"] = per_second / plain


_speeds: dict[str, float] = {}


@pytest.mark.benchmark(group="state, rows")
def test_rows_spark(
    benchmark: Any, spark: SparkSession, source: Path, ratios: dict[str, float]
) -> None:
    measure(benchmark, ratios, "rows, Spark", lambda: stream(spark, source, theirs, Rows()))


@pytest.mark.benchmark(group="state, rows")
def test_no_operator_spark(
    benchmark: Any, spark: SparkSession, source: Path, ratios: dict[str, float]
) -> None:
    def shuffled(df: Any, _processor: Any) -> Any:
        return df.repartition(PARTITIONS, "id")

    measure(benchmark, ratios, "no operator, Spark", lambda: stream(spark, source, shuffled, None))


@pytest.mark.benchmark(group="state, rows")
def test_rows_clonos(
    benchmark: Any, spark: SparkSession, source: Path, ratios: dict[str, float]
) -> None:
    with clonos.attach(spark):
        measure(benchmark, ratios, "rows, Clonos", lambda: stream(spark, source, ours, Rows()))


@pytest.mark.benchmark(group="state, rows")
def test_rows_clonos_clock(
    benchmark: Any,
    spark: SparkSession,
    source: Path,
    ratios: dict[str, float],
    tmp_path: Path,
) -> None:
    with clonos.attach(spark, checkpoint_dir=tmp_path / "logs"):
        name = "rows, Clonos with a reading of the clock per row and a checkpoint"
        measure(benchmark, ratios, name, lambda: stream(spark, source, ours, ClockRows()))


@pytest.mark.benchmark(group="state, rows")
def test_batches_clonos(
    benchmark: Any, spark: SparkSession, source: Path, ratios: dict[str, float]
) -> None:
    with clonos.attach(spark):
        measure(
            benchmark, ratios, "batches, Clonos", lambda: stream(spark, source, ours, Batches())
        )


@pytest.mark.benchmark(group="state, frames")
def test_frames_spark(
    benchmark: Any, spark: SparkSession, source: Path, ratios: dict[str, float]
) -> None:
    measure(benchmark, ratios, "frames, Spark", lambda: stream(spark, source, theirs, Frames()))


@pytest.mark.benchmark(group="state, frames")
def test_frames_clonos(
    benchmark: Any, spark: SparkSession, source: Path, ratios: dict[str, float]
) -> None:
    with clonos.attach(spark):
        measure(benchmark, ratios, "frames, Clonos", lambda: stream(spark, source, ours, Frames()))
