"""Timers of `transform_with_state` on streams: a batch when one is due, whether there are rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from shown import PROVIDER, ROCKS_DB, Folder, at
from versions import since_42

import clonos
from clonos import testing

pytest.importorskip("google.protobuf", reason="Spark's own operator needs protobuf")
pytestmark = [pytest.mark.timeout(600), since_42]
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OUTPUT = "id string, what string, at long"
PATIENCE_SECONDS = 150.0
# Long enough for batches that should not be.
QUIET_SECONDS = 1.0


class Alarm(StatefulProcessor):
    """Registers timers so many milliseconds from the batch's time as its rows say."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            if row.n < 0:
                for expiry in list(self.handle.listTimers()):
                    self.handle.deleteTimer(expiry)
            else:
                self.handle.registerTimer(now + row.n)
        self.seen.update((now,))
        yield Row(id=key[0], what="rows", at=now)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        yield Row(id=key[0], what="timer", at=late)


class Sessions(StatefulProcessor):
    """Ends a session when the watermark has passed its last row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        times = [int(row.at.timestamp() * 1000) for row in rows]
        self.count.update(((self.count.get() or (0,))[0] + len(times),))
        for expiry in list(self.handle.listTimers()):
            self.handle.deleteTimer(expiry)
        self.handle.registerTimer(max(times) + 5_000)
        yield Row(id=key[0], what="rows", at=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        (count,) = self.count.get()
        self.count.clear()
        yield Row(id=key[0], what=f"{count} rows", at=expiredTimerInfo.getExpiryTimeInMs())


class ArrowSessions(clonos.BatchProcessor):
    """The same of all keys at once."""

    state_schema = "n long"
    state_name = "count"

    def handle_batch(self, keys: Any, rows: clonos.GroupedRows, state: Any) -> clonos.Handled:
        count = pc.add(pc.fill_null(state["n"], 0), rows.counts)
        latest = rows.aggregate(at=(pc.cast(rows["at"], pa.timestamp("ms", "UTC")), "max"))["at"]
        timers = pc.add(pc.cast(latest, pa.int64()), 5_000)
        told = {"id": keys["id"], "what": ["rows"] * len(keys)}
        output = pa.table({**told, "at": [rows.watermark_ms] * len(keys)})
        return clonos.Handled(output, pa.table({"n": count}), timers)

    def handle_timers(self, keys: Any, timers: clonos.GroupedRows, state: Any) -> Any:
        what = [f"{count} rows" for count in state["n"].to_pylist()]
        output = pa.table({"id": keys["id"], "what": what, "at": timers["expiry_ms"]})
        return output, pa.table({"n": pa.nulls(len(keys))})


def alarms(df: Any, **options: Any) -> Any:
    options = {"uid": "alarm", **options}
    return clonos.transform_with_state(
        df.groupBy("id"), Alarm(), OUTPUT, "update", "processingTime", **options
    )


class Run:
    """A query, and what each of its batches emitted."""

    def __init__(self, df: Any, checkpoint: Path, **trigger: Any) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        writer = df.writeStream.outputMode("update").foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(checkpoint))
        self.query = (writer.trigger(**trigger) if trigger else writer).start()

    def _keep(self, batch: Any, number: int) -> None:
        self.batches[number] = sorted(map(tuple, batch.collect()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()

    def fired(self) -> list[tuple[str, int]]:
        rows = [row for _, rows in sorted(self.batches.items()) for row in rows]
        return [(key, late) for key, what, late in rows if what == "timer"]

    def await_fired(self, count: int) -> list[tuple[str, int]]:
        def is_there() -> bool:
            return len(self.fired()) >= count or not self.query.isActive

        testing.wait_until(is_there, f"{count} timers", PATIENCE_SECONDS)
        if not self.query.isActive:
            self.query.awaitTermination()
        return self.fired()

    def ended(self) -> dict[int, list[tuple[Any, ...]]]:
        assert self.query.awaitTermination(PATIENCE_SECONDS)
        return self.batches


def test_timers_fire_without_rows_and_nothing_runs_while_none_is_due(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 100}, {"id": "a", "n": 3_600_000}, {"id": "b", "n": 100})
    df = alarms(folder.read(spark))
    with Run(df, tmp_path / "one") as one, Run(df, tmp_path / "two") as two:
        for run in (one, two):
            found = run.await_fired(2)
            assert [key for key, _ in found] == ["a", "b"]
            assert all(late >= 0 for _, late in found)
        time.sleep(QUIET_SECONDS)
        # Both timers are one batch, and the hour is not over.
        assert sorted(one.batches) == sorted(two.batches) == [0, 1]
        # One that was deleted does not fire, and begins no batch.
        folder.put({"id": "b", "n": 400}, {"id": "b", "n": -1})
        one.query.processAllAvailable()
        two.query.processAllAvailable()
        time.sleep(QUIET_SECONDS)
        assert sorted(one.batches) == sorted(two.batches) == [0, 1, 2]
    # The same driver, another run of the query; the timer came due in between.
    folder.put({"id": "c", "n": 1_500})
    with Run(df, tmp_path / "one") as one:
        one.query.processAllAvailable()
    time.sleep(1.5)
    with Run(df, tmp_path / "one") as one:
        assert [key for key, _ in one.await_fired(1)] == ["c"]
        assert len(one.batches) == 1


def test_streams_of_other_sessions_of_the_application_have_timers(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 100})
    with Run(alarms(folder.read(spark.newSession())), tmp_path / "checkpoint") as run:
        assert [key for key, _ in run.await_fired(1)] == ["a"]


def test_a_batch_that_nobody_asked_for_keeps_no_later_timer_from_firing(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 100}, {"id": "b", "n": 3_000})
    fired: list[str] = []

    def keep(batch: Any, number: int) -> None:
        # The batch of the first timer comes to nothing.
        if number != 1:
            fired.extend(row.id for row in batch.collect() if row.what == "timer")

    writer = alarms(folder.read(spark)).writeStream.outputMode("update").foreachBatch(keep)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        testing.wait_until(lambda: "b" in fired, "the later timer", PATIENCE_SECONDS)
    finally:
        query.stop()
    assert sorted(fired) == ["a", "b"]


def test_a_run_over_what_there_is_fires_what_is_due_and_ends(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 50}, {"id": "a", "n": 3_600_000})
    df, checkpoint = alarms(folder.read(spark)), tmp_path / "checkpoint"
    with Run(df, checkpoint, availableNow=True) as run:
        run.ended()
    time.sleep(0.1)
    for trigger in ({"availableNow": True}, {"once": True}):
        with Run(df, checkpoint, **trigger) as again:
            again.ended()
        run.batches.update(again.batches)
    assert [key for key, _ in run.fired()] == ["a"]


def test_each_operator_of_a_query_has_its_own_timers(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 0}, {"id": "a", "n": 200})
    rows = folder.read(spark)
    # Two that the program calls the same, and one behind them.
    both = alarms(rows, uid=None).union(alarms(rows, uid=None))
    behind = alarms(both.selectExpr("id", "if(what = 'timer', 300, 3600000) as n"), uid="behind")
    with Run(behind, tmp_path / "checkpoint") as run:
        found = run.await_fired(1)
        time.sleep(QUIET_SECONDS)
        assert [key for key, _ in found] == ["a"] * len(found)
        assert max(run.batches) <= 4


def sessions(folder: Folder, spark: Any, side: str) -> Any:
    grouped = folder.read(spark).withWatermark("at", "10 seconds").groupBy("id")
    arguments = (OUTPUT, "Append", "EventTime")
    if side == "spark":
        return grouped.transformWithState(Sessions(), *arguments)
    if side == "rows":
        return clonos.transform_with_state(grouped, Sessions(), *arguments, uid="sessions")
    return clonos.transform_with_state(
        grouped, ArrowSessions(), *arguments, uid="sessions", flavour="arrow"
    )


def test_event_timers_fire_in_sparks_batches(spark: Any, session: Any, tmp_path: Path) -> None:
    spark.conf.set(PROVIDER, ROCKS_DB)
    folder = Folder(tmp_path)
    for second in (0, 3, 30, 32, 70):
        folder.put({"id": "a", "at": at(second)}, {"id": f"k{second // 10}", "at": at(second - 4)})
    found = []
    for side in ("spark", "rows", "arrow"):
        df, checkpoint = sessions(folder, spark, side), tmp_path / side
        writer = df.writeStream.outputMode("append").option("checkpointLocation", str(checkpoint))
        batches: dict[int, Any] = {}

        def keep(batch: Any, number: int, batches: dict[int, Any] = batches) -> None:
            batches[number] = sorted(map(tuple, batch.collect()))

        query = writer.foreachBatch(keep).trigger(availableNow=True).start()
        query.awaitTermination()
        found.append({number: rows for number, rows in batches.items() if rows})
    plain, mine, in_arrow = found
    assert mine == plain
    assert in_arrow == plain
    # The last of them came without rows.
    assert [row[:2] for row in mine[5]] == [("k3", "2 rows")]


def sources_of(df: Any) -> int:
    return str(df._jdf.queryExecution().logical()).count("clonos-timers")


def test_what_has_no_timers_has_no_source_of_them(spark: Any, session: Any, tmp_path: Path) -> None:
    class Counter(Alarm):
        handleExpiredTimer = StatefulProcessor.handleExpiredTimer

    folder = Folder(tmp_path)
    rows = folder.read(spark).groupBy("id")
    made = {
        (type(processor).__name__, mode): sources_of(
            clonos.transform_with_state(rows, processor, OUTPUT, "update", mode)
        )
        for processor in (Alarm(), Counter())
        for mode in ("none", "processingTime")
    }
    assert [name for name, count in made.items() if count] == [("Alarm", "processingTime")]
    assert sources_of(sessions(folder, spark, "arrow")) == 1

    class Silent(ArrowSessions):
        handle_timers = clonos.BatchProcessor.handle_timers

    silent = clonos.transform_with_state(
        rows, Silent(), OUTPUT, "update", "processingTime", flavour="arrow"
    )
    assert sources_of(silent) == 0
    batch = spark.createDataFrame([("a", 0, None)], "id string, n long, at timestamp")
    assert sources_of(alarms(batch)) == 0
