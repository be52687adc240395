"""`transform_with_state` on real Spark, beside Spark's own operator: streams."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor
from shown import (
    PROVIDER,
    ROCKS_DB,
    Folder,
    Shown,
    ShownFrames,
    WithTimers,
    at,
    batches,
    ours,
    theirs,
)
from versions import since_42

import clonos
from clonos.errors import ConfigError

pytest.importorskip("google.protobuf", reason="Spark's own operator needs protobuf")
pytestmark = pytest.mark.timeout(600)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def _rocks_db(plain_spark: Any) -> None:
    plain_spark.conf.set(PROVIDER, ROCKS_DB)


@pytest.mark.parametrize("processor", [Shown(), ShownFrames()])
def test_a_stream_is_as_sparks(spark: Any, session: Any, tmp_path: Path, processor: Any) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "a", "n": 3, "at": at(1)})
    folder.put({"id": "a", "n": 4})
    folder.put({"id": "c", "n": 5}, {"id": "b", "n": 6})
    grouped = folder.read(spark).groupBy("id")
    expected = batches(theirs(grouped, processor), tmp_path / "theirs")
    assert batches(ours(grouped, processor, uid="shown"), tmp_path / "ours") == expected
    # Spark goes on where it was, and so do we.
    folder.put({"id": "a", "n": 7}, {"id": "c", "n": 8})
    expected = batches(theirs(grouped, processor), tmp_path / "theirs")
    assert batches(ours(grouped, processor, uid="shown"), tmp_path / "ours") == expected


@since_42
def test_event_time_is_as_sparks(spark: Any, session: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 1, "at": at(0)}, {"id": "b", "n": 5})
    folder.put({"id": "a", "n": 3, "at": at(30)})
    folder.put(*({"id": "b", "n": 40 + s, "at": at(s)} for s in (5, 20, 21)))
    folder.put(*({"id": "c", "n": 40, "at": at(s)} for s in (5, 20, 20.001, 21)))
    folder.put({"id": "a", "n": 3, "at": at(60)}, {"id": "old", "n": 3, "at": at(-(10**9))})
    grouped = folder.read(spark).withWatermark("at", "10 seconds").groupBy("id")
    expected = batches(theirs(grouped, WithTimers(), "EventTime"), tmp_path / "theirs")
    # The last batch has no rows: timers are due.
    assert batches(ours(grouped, WithTimers(), "EventTime"), tmp_path / "ours") == expected
    assert len(expected) == 6


class Clock(StatefulProcessor):
    """Shows the times that it is told, and how often its key came."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = (self.seen.get() or (0,))[0] + 1
        self.seen.update((count,))
        yield Row(id=str(count), what=str(timerValues.getCurrentProcessingTimeInMs()))


def test_a_stream_of_another_session_has_the_clock_of_its_own_log(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a"})
    other = spark.newSession()
    grouped = folder.read(other).groupBy("id")
    df = ours(grouped, Clock(), "ProcessingTime", partitions=2, uid="clock")
    checkpoint = tmp_path / "checkpoint"
    found = batches(df, checkpoint)
    folder.put({"id": "a"})
    # The session is told that the query begins anew, and that its batches are over.
    found += batches(df, checkpoint)
    logged = []
    for number in (0, 1):
        metadata = (checkpoint / "offsets" / str(number)).read_text().splitlines()[1]
        logged.append(str(json.loads(metadata)["batchTimestampMs"]))
    assert found == [[("1", logged[0])], [("2", logged[1])]]


class Passing(StatefulProcessor):
    """Passes rows on with their time."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield from (Row(id=row.id, at=row.at) for row in rows)


class Late(Passing):
    """Gives rows a time long past."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield from (Row(id=row.id, at=dt.datetime(2020, 1, 1)) for row in rows)


class Closing(Passing):
    """Emits at the end of a session, which the watermark is past by then."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(max(int(row.at.timestamp()) for row in rows) * 1000 + 5_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        expiry = expiredTimerInfo.getExpiryTimeInMs() // 1000
        yield Row(id=key[0], at=dt.datetime.fromtimestamp(expiry))


def passed(df: Any, processor: Any) -> Any:
    grouped = df.withWatermark("at", "10 seconds").groupBy("id")
    return clonos.transform_with_state(
        *(grouped, processor, "id string, at timestamp", "append", "eventTime"),
        event_time_column="at",
    )


def test_the_output_has_an_event_time_that_aggregates_of_spark_go_by(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    for second in (0, 3, 30, 61, 90):
        folder.put({"id": "a", "n": 1, "at": at(second)}, {"id": "b", "n": 1, "at": at(second)})
    windows = passed(folder.read(spark), Passing()).groupBy(sf.window("at", "10 seconds")).count()
    found = batches(windows.select("window.start", "count"), tmp_path / "checkpoint", "append")
    counts = [count for batch in found for _, count in batch]
    assert counts == [4, 2, 2]


def test_timers_emit_rows_of_their_time(spark: Any, session: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for second in (0, 60, 120):
        folder.put({"id": f"k{second}", "n": 1, "at": at(second)})
    windows = passed(folder.read(spark), Closing()).groupBy(sf.window("at", "10 seconds")).count()
    found = batches(windows.select("window.start", "count"), tmp_path / "checkpoint", "append")
    assert [count for batch in found for _, count in batch] == [1, 1]


def test_late_output_is_refused(spark: Any, session: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 1, "at": at(0)})
    folder.put({"id": "a", "n": 1, "at": at(30)})
    # By the watermark of the batch before, as in Spark.
    folder.put({"id": "a", "n": 1, "at": at(60)})
    with pytest.raises(Exception, match="EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED"):
        batches(passed(folder.read(spark), Late()), tmp_path / "checkpoint")


def test_a_stream_needs_a_session_and_event_time_a_watermark(
    plain_spark: Any, tmp_path: Path
) -> None:
    stream = Folder(tmp_path).read(plain_spark)
    with pytest.raises(ConfigError, match=r"clonos.attach\(spark\)"):
        ours(stream.groupBy("id"), Shown())
    with clonos.attach(plain_spark):
        with pytest.raises(ConfigError, match="withWatermark"):
            ours(stream.groupBy("id"), Shown(), "eventTime")
    with clonos.attach(plain_spark, guarantee="at_least_once"):
        with pytest.raises(ConfigError, match="exactly_once"):
            ours(stream.groupBy("id"), Shown())


class Drawing(StatefulProcessor):
    """Adds up numbers drawn by chance; what it emits is the sum so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "n long, calls long")
        self.done = 0

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.sum.get() or (0, 0)
        count = sum(1 for _ in rows)
        drawn = sum(clonos.random.randrange(1_000) for _ in range(count))
        calls = before[1] + clonos.call(self.answer)
        self.sum.update((before[0] + drawn, calls))
        self.done += 1
        if self.done == 3:
            self.die_once()
        yield Row(id=key[0], drawn=drawn, sum=before[0] + drawn, calls=calls)

    @staticmethod
    def answer() -> int:
        return int.from_bytes(os.urandom(2), "big")

    def die_once(self) -> None:
        try:
            Path(self.folder, f"died-{self.batch()}").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def batch() -> str:
        from pyspark import TaskContext

        return str(TaskContext.get().getLocalProperty("streaming.sql.batchId"))


class DrawingInArrow(clonos.BatchProcessor):
    """The same of all keys at once, with one reading for all."""

    state_schema = "n long, calls long"
    state_name = "sum"

    def __init__(self, folder: Path) -> None:
        self.dying = Drawing(folder)

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> tuple[pa.Table, pa.RecordBatch]:
        drawn = clonos.numpy_rng().integers(0, 1_000, len(rows))
        drawn = rows.aggregate(n=(pa.array(drawn), "sum"))["n"]
        total = pc.add(pc.fill_null(state["n"], 0), drawn)
        calls = pc.add(pc.fill_null(state["calls"], 0), clonos.call(self.dying.answer))
        self.dying.die_once()
        output = pa.table([keys["id"], drawn, total, calls], ["id", "drawn", "sum", "calls"])
        return output, pa.record_batch([total, calls], ["n", "calls"])


@pytest.mark.parametrize("kind", [Drawing, DrawingInArrow])
def test_state_and_output_agree_whatever_dies(
    spark: Any, session: Any, tmp_path: Path, kind: Any
) -> None:
    folder = Folder(tmp_path)
    for batch in range(4):
        folder.put(*({"id": f"k{n % 20}", "n": batch} for n in range(100)))
    drawn = clonos.transform_with_state(
        *(folder.read(spark).groupBy("id"), kind(tmp_path)),
        *("id string, drawn long, sum long, calls long", "update", "none"),
        uid="drawing",
        flavour="row" if kind is Drawing else "arrow",
    )
    sums: dict[str, int] = defaultdict(int)
    for rows in batches(drawn, tmp_path / "checkpoint"):
        assert len(rows) == 20
        for key, number, so_far, _ in rows:
            sums[key] += number
            assert so_far == sums[key]
    assert len(list(tmp_path.glob("died-*"))) == 4


def test_state_of_a_batch_function_goes_on_from_batch_to_batch(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    for n in range(3):
        folder.put({"id": "a", "n": n})
    found: list[Any] = []

    @session.foreach_batch
    def each(batch: Any, _number: int) -> None:
        counted = ours(batch.groupBy("id"), Shown(), uid="each")
        found.extend(row.what.split("], (")[-1] for row in counted.collect())

    query = (
        folder.read(spark)
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # What the state was before each.
    assert [what[:9] for what in found] == ["None, [],", "(1, None)", "(2, None)"]


def test_a_uid_that_stands_in_two_places_of_a_batch_is_refused(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 0}, {"id": "b", "n": 1})
    found: list[Any] = []

    # Whichever ran first in a batch would have the state of whichever ran first in the one before.
    @session.foreach_batch
    def each(batch: Any, _number: int) -> None:
        for key in ("a", "b"):
            rows = batch.where(sf.col("id") == key)
            found.append(ours(rows.groupBy("id"), Shown(), uid="each").collect())

    query = (
        folder.read(spark)
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match=r'state of "each#2".*give each place its own'):
        query.awaitTermination()
    assert len(found) == 1


class Failing(StatefulProcessor):
    """Counts rows; fails in the middle of the second batch while it is told to."""

    def __init__(self, fails: Path) -> None:
        self.fails = str(fails)

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Any, _times: Any) -> Iterator[Row]:
        (before,) = self.seen.get() or (0,)
        clonos.time_ns()
        if before and key[0] == "b" and Path(self.fails).exists():
            raise OSError("not now")
        seen = before + sum(1 for _ in rows)
        self.seen.update((seen,))
        yield Row(id=key[0], seen=seen)


def test_a_batch_that_failed_says_so_where_it_is_cut_otherwise(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder, fails = Folder(tmp_path), tmp_path / "fails"
    for _ in range(2):
        folder.put(*({"id": key, "n": 1} for key in "abcd"))
    fails.touch()

    def found(partitions: int) -> Any:
        counted = clonos.transform_with_state(
            folder.read(spark).groupBy("id"),
            Failing(fails),
            "id string, seen long",
            "update",
            "none",
            uid="failing",
            partitions=partitions,
        )
        return batches(counted, tmp_path / "checkpoint")

    with pytest.raises(Exception, match="not now"):
        found(1)
    fails.unlink()
    for partitions in (3, 4):
        with pytest.raises(Exception, match="number of tasks it was recorded with"):
            found(partitions)
    assert sorted(found(1)[-1]) == [(key, 2) for key in "abcd"]
    folder.put({"id": "a", "n": 1})
    assert found(3) == [[("a", 3)]]
