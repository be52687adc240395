"""`transform_with_state(initial_state=…)` of streams, beside Spark's own operator."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as sf
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
pytestmark = [pytest.mark.timeout(600), since_42]
cloudpickle.register_pickle_by_value(sys.modules[__name__])

INITIAL = [("a", 5), ("a", 7), ("y", 1), ("z", 6)]
INITIAL_TYPES = "id string, q long"


@pytest.fixture(autouse=True)
def _rocks_db(plain_spark: Any) -> None:
    plain_spark.conf.set(PROVIDER, ROCKS_DB)


class Started(Shown):
    """Counts its calls for the initial state, and has the sum of what they gave."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        before = self.by.getValue((-1,)) if self.by.containsKey((-1,)) else ("", 0)
        self.by.updateValue((-1,), (before[0] + "called ", before[1] + initialState.q))


class StartedFrames(ShownFrames):
    """The same with frames."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        before = (self.seen.get() or (0,))[0]
        self.seen.update((before + 100 + int(initialState["q"].sum()), None))


class StartedWithTimers(WithTimers):
    """Registers timers for keys of which there are no rows."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.seen.update((initialState.q, None))
        self.handle.registerTimer(1_704_067_200_000 + initialState.q * 1000)


def initial(spark: Any) -> Any:
    return spark.createDataFrame(INITIAL, INITIAL_TYPES).groupBy("id")


def stream_of(folder: Folder, spark: Any, processor: Any, *, is_ours: bool) -> Any:
    """As a program makes it that is started again."""
    grouped = folder.read(spark).groupBy("id")
    if is_ours:
        return ours(grouped, processor, initial_state=initial(spark), uid="shown")
    return theirs(grouped, processor, initialState=initial(spark))


@pytest.mark.parametrize("processor", [Started(), StartedFrames()])
def test_a_stream_begins_as_sparks_and_goes_on(
    spark: Any, session: Any, tmp_path: Path, processor: Any
) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 1}, {"id": "b", "n": 2})
    folder.put({"id": "a", "n": 4}, {"id": "z", "n": 3})
    for keys in ("az", "aby"):
        found = {
            is_ours: batches(
                stream_of(folder, spark, processor, is_ours=is_ours), tmp_path / str(is_ours)
            )
            for is_ours in (False, True)
        }
        assert found[True] == found[False]
        assert [key for key, _ in found[True][-1]] == list(keys)
        # The initial state is not read again, whether or not its keys have had rows.
        folder.put(*({"id": key, "n": 5} for key in "aby"))


class FailsOnce:
    """A batch function whose first batch fails behind the operator."""

    def __init__(self) -> None:
        self.found: dict[int, Any] = {}
        self.has_failed = False

    def __call__(self, batch: Any, number: int) -> None:
        self.found[number] = sorted(map(tuple, batch.collect()))
        if not self.has_failed:
            self.has_failed = True
            raise LookupError


def run(df: Any, checkpoint: Path, each: Any) -> None:
    writer = df.writeStream.outputMode("update").foreachBatch(each)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def test_a_first_batch_that_failed_has_it_again_and_once(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 1}, {"id": "b", "n": 2})
    folder.put({"id": "a", "n": 4}, {"id": "z", "n": 3})
    found = {}
    for is_ours in (False, True):
        each, checkpoint = FailsOnce(), tmp_path / str(is_ours)
        with pytest.raises(Exception, match="LookupError"):
            run(stream_of(folder, spark, Started(), is_ours=is_ours), checkpoint, each)
        run(stream_of(folder, spark, Started(), is_ours=is_ours), checkpoint, each)
        found[is_ours] = each.found
    assert found[True] == found[False]
    assert "('called called ', 12)" in found[True][1][0][1].replace("id=", "").replace("n=", "")


class Sums(Shown):
    """Adds up what comes to what there was."""

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.add(initialState.q)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.add(row.n)
        yield Row(id=key[0], what=str(self.sum.get()[0]))

    def add(self, number: int) -> None:
        self.sum.update(((self.sum.get() or (0,))[0] + number,))


class ArrowSums(clonos.BatchProcessor):
    """The same of all keys at once."""

    state_schema = "n long"

    def handle_initial_state(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> pa.RecordBatch:
        return self.added(rows.aggregate(n=("q", "sum")), state)

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> Any:
        now = self.added(rows.aggregate(n=("n", "sum")), state)
        return keys.append_column("what", now["n"].cast(pa.string())), now

    @staticmethod
    def added(new: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([pc.add(pc.fill_null(state["n"], 0), new["n"])], ["n"])


def test_a_stream_in_arrow_begins_as_sparks_does(spark: Any, session: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "a", "n": 1}, {"id": "b", "n": 2})
    folder.put({"id": "a", "n": 4}, {"id": "z", "n": 3})
    plain = stream_of(folder, spark, Sums(), is_ours=False)
    in_arrow = ours(
        folder.read(spark).groupBy("id"), ArrowSums(), initial_state=initial(spark), uid="sums"
    )
    found = [batches(df, tmp_path / name) for name, df in (("theirs", plain), ("ours", in_arrow))]
    assert found[0] == found[1] == [[("a", "13"), ("b", "2")], [("a", "17"), ("z", "9")]]


class DrawnStart(Shown):
    """Begins with chance, and its worker dies while it does."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "n long, calls int")
        self.done = 0

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        before, calls = self.sum.get() or (0, 0)
        self.sum.update((before + clonos.random.randrange(1 << 40), calls + 1))
        self.done += 1
        if self.done == 2:
            with contextlib.suppress(FileExistsError):
                Path(self.folder, "died").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(id=key[0], what=repr(self.sum.get()))


def test_what_it_begins_with_and_what_was_seen_agree_whatever_dies(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    for _ in range(2):
        folder.put(*({"id": f"k{n}", "n": n} for n in range(20)))
    rows = [(f"k{n % 20}", n) for n in range(40)]
    grouped = spark.createDataFrame(rows, INITIAL_TYPES).groupBy("id")
    df = ours(
        folder.read(spark).groupBy("id"), DrawnStart(tmp_path), initial_state=grouped, uid="drawn"
    )
    first, second = batches(df, tmp_path / "checkpoint")
    assert first == second
    assert len({what for _, what in first}) == 20
    assert all(what.endswith(", 2)") for _, what in first)
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize("has_shuffle", [False, True])
def test_it_is_read_in_the_first_batch_alone(
    spark: Any, session: Any, tmp_path: Path, has_shuffle: bool
) -> None:
    reads = tmp_path / "reads"

    def noted(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        with reads.open("a") as file:
            file.write("read\n")
        yield from frames

    folder = Folder(tmp_path)
    for n in range(3):
        folder.put({"id": "a", "n": n})
    given = spark.createDataFrame(INITIAL, INITIAL_TYPES).coalesce(1)
    noted_once = given.mapInPandas(noted, INITIAL_TYPES)
    # Adaptive execution runs all shuffles of a plan before it knows which of them matter.
    spark.conf.set("spark.sql.adaptive.enabled", not has_shuffle)
    if has_shuffle:
        noted_once = noted_once.repartition(2, "id")
    df = ours(
        folder.read(spark).groupBy("id"),
        Started(),
        initial_state=noted_once.groupBy("id"),
        uid="noted",
    )
    try:
        for count in (3, 1):
            assert len(batches(df, tmp_path / "checkpoint")) == count
            folder.put({"id": "a", "n": 9})
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    assert reads.read_text().count("read") == 1


def test_keys_without_rows_have_timers(spark: Any, session: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for second in (0, 30, 60):
        folder.put({"id": "a", "n": second, "at": at(second)})
    found = []
    for is_ours in (False, True):
        grouped = folder.read(spark).withWatermark("at", "10 seconds").groupBy("id")
        if is_ours:
            df = ours(
                grouped, StartedWithTimers(), "EventTime", initial_state=initial(spark), uid="timed"
            )
        else:
            df = theirs(grouped, StartedWithTimers(), "EventTime", initialState=initial(spark))
        found.append(batches(df, tmp_path / str(is_ours)))
    assert found[1] == found[0]
    fired = {key for batch in found[1] for key, what in batch if "Row(id='z')" in what}
    assert fired == {"z"}


def test_a_stream_without_rows_begins_with_it(spark: Any, session: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    df = stream_of(folder, spark, Started(), is_ours=True)
    assert batches(df, tmp_path / "checkpoint") == []
    folder.put({"id": "z", "n": 3})
    ((shown,),) = batches(df, tmp_path / "checkpoint")
    assert "called" in shown[1]


def test_a_grouping_of_it_may_be_computed(spark: Any, session: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put({"id": "A", "n": 1})
    lower = spark.createDataFrame(INITIAL, INITIAL_TYPES)
    df = ours(
        (folder.read(spark.newSession()), ["id"]),
        Started(),
        initial_state=(lower, [sf.upper("id")]),
        uid="upper",
    )
    ((shown,),) = batches(df, tmp_path / "checkpoint")
    assert shown[0] == "A"
    assert "called called" in shown[1]


def test_a_stream_is_none(spark: Any, session: Any, tmp_path: Path) -> None:
    grouped = Folder(tmp_path).read(spark).groupBy("id")
    with pytest.raises(ConfigError, match="must be of a batch query"):
        ours(grouped, Started(), initial_state=grouped)
    with pytest.raises(ConfigError, match="initial_state is kept by keys, and DataFrame has none"):
        ours(grouped, Started(), initial_state=spark.range(1))


@pytest.mark.parametrize("tasks", [None, 1, 2], ids=["each alone", "in one task", "in two tasks"])
@pytest.mark.parametrize("again", [False, True], ids=["one query", "a new query"])
def test_a_first_batch_without_anything_is_where_state_begins(
    spark: Any, session: Any, tmp_path: Path, *, again: bool, tasks: int | None
) -> None:
    (tmp_path / "nothing").mkdir()
    folder, found = Folder(tmp_path), []

    def started() -> Any:
        # Not one task would run for this in the first batch.
        nothing = spark.read.schema("`a.b` string, q long").parquet(str(tmp_path / "nothing"))
        rows = folder.read(spark).withColumn("a.b", sf.col("id"))
        df = ours(
            rows.groupBy("`a.b`"), Started(), initial_state=nothing.groupBy("`a.b`"), uid="shown"
        )
        df = df if tasks is None else df.coalesce(tasks)
        writer = df.writeStream.outputMode("update").foreachBatch(
            lambda batch, _: found.append(batch.count())
        )
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = started()
    try:
        query.processAllAvailable()
        if again:
            query.stop()
            query = started()
        folder.put({"id": "a", "n": 1}, {"id": "b", "n": 2})
        query.processAllAvailable()
    finally:
        query.stop()
    assert found == [0, 2]
