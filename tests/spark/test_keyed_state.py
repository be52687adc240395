"""`transform_with_state` on real Spark, beside Spark's own operator: batch queries and streams."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, IllegalArgumentException, PythonException
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor

import clonos
from clonos.errors import ConfigError

pytest.importorskip("google.protobuf", reason="Spark's own operator needs protobuf")
pytestmark = pytest.mark.timeout(300)
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


@pytest.fixture(autouse=True)
def _rocks_db(plain_spark: Any) -> None:
    plain_spark.conf.set(PROVIDER, ROCKS_DB)


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
    options["flavour"] = "pandas" if isinstance(processor, ShownFrames) else "row"
    return clonos.transform_with_state(grouped, processor, OUTPUT, "Update", mode, **options)


def collected(df: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


@pytest.mark.parametrize("processor", [Shown(), ShownFrames()])
@pytest.mark.parametrize("keys", [["id"], ["c", "id"], ["ID"]])
def test_a_batch_query_is_as_sparks(
    spark: Any, session: Any, processor: Any, keys: list[str]
) -> None:
    # What another key's null does to the type of a column is up to Spark's batches.
    rows = ROWS if processor.__class__ is Shown else [FULL, ROWS[2]]
    grouped = spark.createDataFrame(rows, TYPES).groupBy(*keys)
    assert collected(ours(grouped, processor)) == collected(theirs(grouped, processor))


@pytest.mark.parametrize("processor", [Shown(), ShownFrames()])
def test_an_initial_state_is_as_sparks(spark: Any, session: Any, processor: Any) -> None:
    schema = "id string, n int, at timestamp"
    grouped = spark.createDataFrame([("a", 1, None), ("b", 2, None)], schema).groupBy("id")
    initial = spark.createDataFrame([("a", 5), ("z", 6)], "id string, q long").groupBy("id")
    expected = collected(theirs(grouped, processor, initialState=initial))
    assert collected(ours(grouped, processor, initial_state=initial)) == expected
    other = spark.createDataFrame([(1, 5)], "id int, q long")
    with pytest.raises(ConfigError, match="must have the types"):
        ours(grouped, processor, initial_state=(other, "id"))


def test_nulls_in_the_rows_of_one_key_leave_numbers_of_others_alone(
    spark: Any, session: Any
) -> None:
    grouped = spark.createDataFrame(ROWS, TYPES).groupBy("n")
    found = {row.id: row.what for row in ours(grouped, ShownFrames()).collect()}
    assert "'n': dtype('int64')" in found["1"]
    assert "'flag': dtype('bool')" in found["4"]
    assert "'n': dtype('float64')" in found["nan"]


def test_a_grouping_is_read_in_all_its_forms(spark: Any, session: Any) -> None:
    df = spark.createDataFrame([("a", 1, None), ("b", 2, None)], "id string, n int, at timestamp")
    odd = (sf.col("n") % 2).alias("odd")
    forms = [
        df.groupBy("id"),
        df.groupBy(df.id),
        df.groupBy(sf.col("id")),
        (df, "id"),
        (df, ["id"]),
    ]
    first, *others = [collected(ours(form, Shown())) for form in forms]
    assert all(other == first for other in others)
    computed = collected(ours(df.groupBy(odd, "id"), Shown()))
    # Rows have no column that only the grouping has.
    assert computed[0][1].startswith("((0, 'b'), [Row(id='b', n=2, at=None)]")
    for wrong in (df, df.groupBy(), "id", (df, [])):
        with pytest.raises(ConfigError):
            ours(wrong, Shown())


def test_modes_are_refused_as_by_spark(spark: Any, session: Any) -> None:
    grouped = spark.createDataFrame([("a", 1)], "id string, n int").groupBy("id")
    with pytest.raises(IllegalArgumentException, match="STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE"):
        ours(grouped, Shown(), "sometimes")
    with pytest.raises(IllegalArgumentException, match=r"STREAMING_OUTPUT_MODE\.INVALID"):
        clonos.transform_with_state(grouped, Shown(), OUTPUT, "sometimes", "none")
    with pytest.raises(
        AnalysisException, match="CANNOT_ASSIGN_EVENT_TIME_COLUMN_WITHOUT_WATERMARK"
    ):
        ours(grouped, Shown(), "eventTime", event_time_column="id")


def test_what_a_processor_raises_arrives(spark: Any, session: Any) -> None:
    class Failing(Shown):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            raise LookupError(key[0])

    grouped = spark.createDataFrame([("a", 1)], "id string, n int").groupBy("id")
    with pytest.raises(PythonException, match="LookupError: a"):
        ours(grouped, Failing()).collect()


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


def test_event_time_is_as_sparks(spark: Any, session: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 1, "at": at(0)}, {"id": "b", "n": 5})
    folder.put({"id": "a", "n": 3, "at": at(30)})
    folder.put(*({"id": "b", "n": 40 + s, "at": at(s)} for s in (5, 20, 21)))
    folder.put(*({"id": "c", "n": 40, "at": at(s)} for s in (5, 20, 20.001, 21)))
    folder.put({"id": "a", "n": 3, "at": at(60)}, {"id": "old", "n": 3, "at": at(-(10**9))})
    grouped = folder.read(spark).withWatermark("at", "10 seconds").groupBy("id")
    expected = batches(theirs(grouped, WithTimers(), "EventTime"), tmp_path / "theirs")
    found = batches(ours(grouped, WithTimers(), "EventTime"), tmp_path / "ours")
    # Spark has a batch without rows at the end, in which timers are due.
    assert found == expected[: len(found)]
    assert len(found) == 5


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


def test_late_output_is_refused(spark: Any, session: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 1, "at": at(0)})
    folder.put({"id": "a", "n": 1, "at": at(30)})
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


class Types(clonos.BatchProcessor):
    """Says what it is given."""

    state_schema = "at timestamp"

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> tuple[pa.Table, pa.RecordBatch]:
        what = f"{keys.schema.names} {rows.rows.schema.names} {rows['at'].type} {state['at'].type}"
        output = pa.table({"what": [what] * len(keys), "id": keys[0].cast(pa.string())})
        return output, pa.record_batch([rows.aggregate(at=("at", "max"))["at"]], ["at"])


def test_in_arrow_columns_are_as_spark_gives_them(spark: Any, session: Any) -> None:
    df = spark.createDataFrame([("a", 1, None), ("b", 2, None)], "id string, n int, at timestamp")
    odd = (sf.col("n") % 2).alias("odd")
    zone = spark.conf.get("spark.sql.session.timeZone")
    at = f"timestamp[us, tz={zone}]"

    def run(grouped: Any, **options: Any) -> Any:
        return clonos.transform_with_state(grouped, Types(), OUTPUT, "update", "none", **options)

    found = collected(run(df.groupBy(odd), flavour="arrow"))
    assert found == [(key, f"['odd'] ['id', 'n', 'at'] {at} {at}") for key in ("0", "1")]
    with pytest.raises(ConfigError, match="flavour='arrow'"):
        run(df.groupBy(odd))
    with pytest.raises(ConfigError, match=r"clonos\.BatchProcessor, which Shown is not"):
        clonos.transform_with_state(
            *(df.groupBy("id"), Shown(), OUTPUT, "update", "none"), flavour="arrow"
        )
    with pytest.raises(ConfigError, match="initial_state"):
        run(df.groupBy("id"), flavour="arrow", initial_state=df.groupBy("id"))


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
