"""Programs of clients, as those of `programs`, that keep state by keys."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import note
from pyspark import cloudpickle
from pyspark.errors import IllegalArgumentException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import clonos

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Counting(StatefulProcessor):
    """Counts the rows of a key, and fails once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "n long, x double")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        del key, timerValues
        self._seen.update((initialState.n, 0.0))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        values = [row.value for row in rows]
        n, x = self._seen.get() or (0, 0.0)
        # Asked before it fails: what was answered is kept.
        n, x = n + len(values), x + clonos.call(note, self._folder + "/calls.txt", values[0])
        if 150 in values and not Path(self._folder, "mended").exists():
            message = "on purpose"
            raise ValueError(message)
        self._seen.update((n, x))
        if not list(self._handle.listTimers()):
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 500)
        yield Row(k=key[0], n=n, x=x)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        del timerValues, expiredTimerInfo
        yield Row(k=key[0], n=-1, x=0.0)


def state(spark: SparkSession, folder: Path) -> Any:
    """Keyed state of a stream that begins with rows, has timers, fails and is started again."""
    session = clonos.attach(spark, checkpoint_dir=folder / "checkpoint")
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100)
    frame = source.option("numPartitions", 2).load()
    grouped = frame.groupBy((sf.col("value") % 5).alias("k"))
    begins = spark.createDataFrame([(1, 1000), (2, 2000)], "k long, n long").groupBy("k")
    schema, processor = "k long, n long, x double", Counting(str(folder))
    kept = clonos.transform_with_state(
        *(grouped, processor, schema, "append", "processingTime", begins), partitions=3, uid="count"
    )

    def start() -> Any:
        writer = kept.writeStream.format("clonos-files").option("path", str(folder / "out"))
        return writer.option("checkpointLocation", str(folder / "spark")).start()

    query = start()
    with pytest.raises(Exception, match="on purpose"):
        query.awaitTermination(180)
    (folder / "mended").touch()
    query = start()
    while (query.lastProgress or {}).get("batchId", 0) < 6:
        assert query.exception() is None
        time.sleep(0.2)
    query.stop()
    session.savepoint(query, folder / "saved")
    reader = spark.read.format("clonos-state").option("path", str(folder / "saved"))
    saved = {
        row.key.k: row.value.n for row in reader.option("stateVarName", "seen").load().collect()
    }
    out = spark.read.parquet(str(folder / "out")).collect()
    counted = {k: max(row.n for row in out if row.k == k) for k in range(5)}
    assert {k: n % 1000 for k, n in counted.items()} == dict.fromkeys(range(5), counted[0])
    asked = (folder / "calls.txt").read_text().splitlines()
    return {
        "counted": counted,
        "saved": saved,
        "timers": sum(row.n == -1 for row in out),
        "twice": len(asked) - len(set(asked)),
        "calls": len(asked),
    }


def state_of_batches(spark: SparkSession, folder: Path) -> Any:
    """The same operator over a table, keys of other kinds, and what it refuses."""
    clonos.attach(spark, checkpoint_dir=folder / "checkpoint")
    (folder / "mended").touch()
    frame = spark.range(20).select((sf.col("id") % 3).alias("a b"), sf.col("id").alias("value"))
    schema, processor = "k long, n long, x double", Counting(str(folder))
    found = []
    for grouped in (
        frame.groupBy("a b"),
        frame.groupBy(frame["a b"]),
        (frame, ["a b"]),
        frame.groupBy((sf.col("a b") * 1).alias("k")),
    ):
        kept = clonos.transform_with_state(
            *(grouped, processor, schema, "update", "processingTime"), partitions=2
        )
        found.append({row.k: row.n for row in kept.collect() if row.n > 0})
    refused = []
    for asked in (
        (frame.groupBy("a b"), "sometimes", "none"),
        (frame.groupBy("a b"), "update", "never"),
        (frame.rollup("a b"), "update", "none"),
        (frame, "update", "none"),
    ):
        try:
            clonos.transform_with_state(asked[0], processor, schema, *asked[1:])
        except (clonos.errors.ClonosError, IllegalArgumentException) as error:
            refused.append(str(error))
    return {"found": found, "refused": refused}
