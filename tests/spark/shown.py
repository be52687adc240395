"""Processors that show all that they are given, run by Spark's own operator and by ours."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import clonos

cloudpickle.register_pickle_by_value(sys.modules[__name__])

OUTPUT = "id string, what string"
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
TYPES = """
    id string, n int, `a b` float, flag boolean, at timestamp, day date, amount decimal(10, 2),
    raw binary, list array<int>, pairs map<string, int>, inner struct<x: int, y: string>, c smallint
"""
FULL = (
    *("a", 1, 1.5, True, dt.datetime(2024, 1, 1), dt.date(2024, 1, 1), decimal.Decimal("1.5")),
    *(b"x", [1], {"a": 1}, (1, "x"), 2),
)
ROWS = [FULL, ("b", *[None] * 10, 3), ("b", 4, 2.5, False, *[None] * 7, 3)]


class Shown(StatefulProcessor):
    """Shows all that a processor of Rows is given, and what its state was."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n long, last timestamp")
        self.all = handle.getListState("all", "n int")
        self.by = handle.getMapState("by", "n int", "id string, n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        rows = sorted(rows, key=repr)
        before = self.seen.get(), list(self.all.get()), sorted(self.by.iterator(), key=repr)
        latest = max((row.at.replace(tzinfo=None) for row in rows if row.at), default=None)
        self.seen.update(((before[0] or (0,))[0] + len(rows), latest))
        for row in rows:
            self.all.appendValue((row.n,))
            self.by.updateValue((row.n,), (row.id, row.n))
        after = self.seen.get(), sorted(map(repr, self.all.get())), self.by.getValue((rows[0].n,))
        self.register(timerValues)
        yield Row(id=str(key[0]), what=repr((key, rows, before, after)))

    def register(self, times: Any) -> None:
        """Register no timer."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        told = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield Row(id=str(key[0]), what=repr((key, told, self.seen.get())))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.seen.update((initialState.q, None))


class ShownFrames(Shown):
    """Shows all that a processor of frames is given."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        before = self.seen.get()
        shown = []
        for frame in rows:
            shown.append((dict(frame.dtypes), frame.to_dict("list"), list(frame.index)))
            self.seen.update(((before or (0,))[0] + len(frame), None))
        yield pd.DataFrame({"id": [str(key[0])], "what": [repr((key, shown, self.seen.get()))]})

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.seen.update((int(initialState["q"].sum()), None))


class WithTimers(Shown):
    """Registers timers around the watermark."""

    def register(self, times: Any) -> None:
        for distance in (-1, 0, 1, 5_000):
            self.handle.registerTimer(max(0, times.getCurrentWatermarkInMs() + distance))


def theirs(grouped: Any, processor: Any, mode: str = "None", **options: Any) -> Any:
    frames = isinstance(processor, ShownFrames)
    run = grouped.transformWithStateInPandas if frames else grouped.transformWithState
    return run(processor, OUTPUT, "Update", mode, **options)


def ours(grouped: Any, processor: Any, mode: str = "None", **options: Any) -> Any:
    kinds = {ShownFrames: "pandas", clonos.BatchProcessor: "arrow"}
    options["flavour"] = next((kinds[kind] for kind in kinds if isinstance(processor, kind)), "row")
    return clonos.transform_with_state(grouped, processor, OUTPUT, "Update", mode, **options)


def collected(df: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


class Folder:
    """A source of files, one batch each."""

    def __init__(self, path: Path) -> None:
        self.path = path / "in"
        self.path.mkdir()
        self._count = 0

    def put(self, *rows: dict[str, Any]) -> None:
        self._count += 1
        hidden = self.path / f".{self._count}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # The source takes them in the order of their times.
        os.utime(hidden, (1_700_000_000 + self._count,) * 2)
        hidden.rename(self.path / f"{self._count}.json")

    def read(self, spark: Any) -> Any:
        reader = spark.readStream.schema("id string, n int, at timestamp")
        return reader.option("maxFilesPerTrigger", 1).json(str(self.path))


def at(seconds: float) -> str:
    return (dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)).isoformat()


def batches(df: Any, checkpoint: Path, mode: str = "update") -> list[list[tuple[Any, ...]]]:
    """Run a stream over what there is; its output by batch."""
    found: dict[int, list[tuple[Any, ...]]] = {}

    def keep(batch: Any, number: int) -> None:
        found[number] = collected(batch)

    writer = df.writeStream.outputMode(mode).foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return [rows for _, rows in sorted(found.items()) if rows]
