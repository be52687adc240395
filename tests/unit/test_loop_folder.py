"""Folders, rows and options of loops, without Spark."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from clonos._arrow_types import arrow_schema
from clonos._loops import Loop, loop_of, source
from clonos._loops.folder import LoopFolder
from clonos._loops.rows import conformed, read_rows, write_rows
from clonos._loops.sink import LoopBatchWriter, LoopTarget
from clonos._loops.source import LoopOptions, LoopReader, ReadMaxRows
from clonos._sinks import place
from clonos._sinks.fence import Claim, Driver
from clonos._sinks.options import Options
from clonos._sinks.place import Place
from clonos.errors import ClonosError, ConfigError, CorruptLog, EpochFenced, SourceInUse

SCHEMA = t.StructType().add("n", t.LongType())
ONE, TWO = Driver("one", 1, "1"), Driver("two", 2, "2")


def target(root: Path, schema: t.StructType = SCHEMA, **options: str) -> LoopTarget:
    return LoopTarget(Options("clonos-loop", {"path": str(root), **options}, ("path",)), schema)


def reader(root: Path, schema: t.StructType = SCHEMA, **options: str) -> LoopReader:
    return LoopReader(LoopOptions.read({"path": str(root), **options}), schema, 2)


def write(
    root: Path, epoch: int, *tasks: list[int], driver: Driver = ONE, query: str = "q"
) -> None:
    loop = target(root)
    staged = []
    for number, values in enumerate(tasks or ([],)):
        rows = iter([pa.record_batch({"n": pa.array(values, pa.int64())})])
        staged.append(loop.stage(Place(query, str(epoch), number, uuid.uuid4().hex), rows))
    loop.commit(staged, Claim(query, epoch, driver, str(epoch)))


def read(loop: LoopReader, start: Any, end: Any) -> list[int]:
    pieces = loop.partitions(start, end)
    return [n for p in pieces for batch in loop.read(p) for n in batch.column("n").to_pylist()]


def error_of(condition: str, kind: type[ClonosError], *parts: object) -> Any:
    """What is raised must be of this class and condition, and its text have these parts."""

    class Caught:
        def __enter__(self) -> None:
            pass

        def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
            assert isinstance(error, kind), error
            assert error.condition == condition
            for part in parts:
                assert str(part) in str(error)
            return True

    return Caught()


def test_epochs_come_back_in_order_each_row_once(tmp_path: Path) -> None:
    loop = reader(tmp_path / "loop")
    start = loop.initialOffset()
    assert loop.latestOffset(start) == start
    write(tmp_path / "loop", 0, [1, 2], [3])
    write(tmp_path / "loop", 1)
    write(tmp_path / "loop", 4, [4])
    end = loop.latestOffset(start)
    assert end == {**start, "epoch": 4}
    assert read(loop, start, end) == [1, 2, 3, 4]
    assert loop.latestOffset(end) == end
    # An epoch without rows is no reason for a batch.
    write(tmp_path / "loop", 5)
    assert loop.latestOffset(end) == end
    assert LoopFolder(tmp_path / "loop").numbers() == [0, 4, 5]


def test_a_batch_has_whole_epochs_that_are_old_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([100.0, 101.0, 105.0])
    monkeypatch.setattr("time.time_ns", lambda: int(next(times) * 1e9))
    for epoch, rows in enumerate(([1, 2], [3], [4, 5, 6])):
        write(tmp_path, epoch, rows)
    loop = reader(tmp_path, delay="2 seconds")
    start = loop.initialOffset()

    def latest(now: float, most: int | None = None) -> int:
        monkeypatch.setattr("time.time_ns", lambda: int(now * 1e9))
        found = loop.latestOffset(start, None if most is None else ReadMaxRows(most))
        return int(found["epoch"])

    assert [latest(now) for now in (101, 102, 103, 106.9, 107)] == [-1, 0, 1, 1, 2]
    assert [latest(200, most) for most in (1, 3, 5, 6)] == [0, 1, 1, 2]


def test_a_run_over_what_there_is_ends_with_that_unless_it_is_told_to_go_on(tmp_path: Path) -> None:
    write(tmp_path, 0, [1])
    once, on = reader(tmp_path), reader(tmp_path, untilEmpty="true")
    for loop in (once, on):
        loop.prepareForTriggerAvailableNow()
    write(tmp_path, 1, [2])
    assert once.latestOffset(once.initialOffset())["epoch"] == 0
    assert on.latestOffset(on.initialOffset())["epoch"] == 1


def test_files_are_shared_between_tasks_by_their_rows(tmp_path: Path) -> None:
    write(tmp_path, 0, [*range(50)], [*range(10)], [], [*range(40)])
    loop = reader(tmp_path, numPartitions="2")
    start = loop.initialOffset()
    pieces: list[Any] = list(loop.partitions(start, loop.latestOffset(start)))
    assert [[part.rows for _, part in piece.files] for piece in pieces] == [[50], [10, 40]]
    assert len(reader(tmp_path).partitions(start, {**start, "epoch": 0})) == 1


def test_what_was_read_long_ago_is_removed(tmp_path: Path) -> None:
    loop = reader(tmp_path)
    offset = loop.initialOffset()
    loop.commit(offset)
    for epoch in range(6):
        write(tmp_path, epoch, [epoch])
        offset = loop.latestOffset(offset)
        loop.commit(offset)
        loop.commit(offset)
    # Two batches can be taken back, from the one that follows.
    assert LoopFolder(tmp_path).numbers() == [4, 5]
    assert not (tmp_path / "removed").exists()


def test_spark_4_1_does_not_say_where_a_batch_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "HAS_STARTS", False)
    assert reader(tmp_path / "new").latestOffset()["epoch"] == -1
    for epoch in range(6):
        write(tmp_path, epoch, [epoch])
        reader(tmp_path).commit(reader(tmp_path).latestOffset())
    assert LoopFolder(tmp_path).numbers() == [4, 5]
    # Another process of the same query.
    assert reader(tmp_path).latestOffset()["epoch"] == 5
    assert reader(tmp_path, delay="1 hour").latestOffset()["epoch"] == 3


def test_a_loop_has_one_reader(tmp_path: Path) -> None:
    write(tmp_path, 0, [1])
    first, second = reader(tmp_path), reader(tmp_path)
    end = first.latestOffset(first.initialOffset())
    other = second.latestOffset(second.initialOffset())
    first.commit(end)
    with error_of("SOURCE_IN_USE", SourceInUse, tmp_path, "another query"):
        second.commit(other)
    with error_of("SOURCE_IN_USE", SourceInUse):
        reader(tmp_path).latestOffset(other)
    assert reader(tmp_path).latestOffset(end) == end


def test_a_loop_has_one_writer(tmp_path: Path) -> None:
    write(tmp_path, 0, [1])
    with error_of("CONFIG", ConfigError, "query q writes", "this is query other", tmp_path):
        write(tmp_path, 1, [2], query="other")
    write(tmp_path, 1, [2])
    # A driver that was started again finds its epoch written; one that is late, a later one.
    write(tmp_path, 1, [3], driver=TWO)
    write(tmp_path, 2, [4], driver=TWO)
    with error_of("EPOCH_FENCED", EpochFenced, "host two", "checkpointLocation"):
        write(tmp_path, 2, [5], driver=ONE)
    with error_of("EPOCH_FENCED", EpochFenced, "host two", "taken back", tmp_path / "epochs"):
        write(tmp_path, 1, [5], driver=ONE)
    loop = reader(tmp_path)
    assert read(loop, loop.initialOffset(), {"epoch": 2}) == [1, 2, 4]


def test_a_folder_that_the_driver_does_not_see_is_named(tmp_path: Path) -> None:
    task, driver = target(tmp_path / "there"), target(tmp_path / "here")
    staged = task.stage(Place("q", "0", 0, "a"), iter([pa.record_batch({"n": [1]})]))
    with error_of("CONFIG", ConfigError, tmp_path / "here", "have mounted"):
        driver.commit([staged], Claim("q", 0, ONE, "0"))


def test_an_epoch_is_written_once_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "run", lambda: "first run")
    write(tmp_path, 0, [1])
    with error_of("CONFIG", ConfigError, "epoch 0", "union"):
        write(tmp_path, 0, [2])
    monkeypatch.setattr(place, "run", lambda: "second run")
    write(tmp_path, 0, [3])
    loop = reader(tmp_path)
    assert read(loop, loop.initialOffset(), {"epoch": 0}) == [1]


def test_a_query_that_was_taken_back_alone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch in range(3):
        write(tmp_path, epoch, [epoch])
    loop = reader(tmp_path)
    asked = (loop, loop.initialOffset(), {"epoch": 2})
    for task in (("q", 3), ("another query", 0), None):
        monkeypatch.setattr(place, "streaming_task", lambda task=task: task)
        assert read(*asked) == [0, 1, 2]
    monkeypatch.setattr(place, "streaming_task", lambda: ("q", 2))
    with error_of("EPOCH_FENCED", EpochFenced, "epoch 2", "remove the folders 2 and later"):
        read(*asked)


@pytest.mark.parametrize(
    "what", ["cut", "flipped", "gone", "no record", "no json", "a digit", "renamed"]
)
def test_what_is_damaged_is_named(tmp_path: Path, what: str) -> None:
    write(tmp_path, 0, [1])
    write(tmp_path, 1, [*range(1000)])
    (rows,) = (tmp_path / "epochs" / "1").glob("*.arrow")
    mark = rows.with_name("epoch.json")
    damaged = rows if what in {"cut", "flipped", "gone"} else mark
    whole = damaged.read_bytes()
    if what == "gone":
        rows.unlink()
    elif what == "renamed":
        mark.write_bytes((tmp_path / "epochs" / "0" / "epoch.json").read_bytes())
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        made = {"cut": whole[:-3], "flipped": flipped, "no record": b"{}", "no json": b"{"}
        made["a digit"] = whole.replace(b'"before": 0', b'"before": -1')
        damaged.write_bytes(made[what])
    loop = reader(tmp_path)
    with error_of("CORRUPT_LOOP", CorruptLog, damaged):
        read(loop, loop.initialOffset(), loop.latestOffset(loop.initialOffset()))


def test_epochs_that_are_missing_are_named(tmp_path: Path) -> None:
    for epoch in range(3):
        write(tmp_path, epoch, [epoch])
    loop = reader(tmp_path)
    start = loop.initialOffset()
    with error_of("SOURCE_TRUNCATED", CorruptLog, "up to epoch 7", "ends at epoch 2"):
        loop.latestOffset({**start, "epoch": 7})
    with error_of("SOURCE_TRUNCATED", CorruptLog, "is empty"):
        reader(tmp_path / "new").latestOffset({**start, "epoch": 7})
    LoopFolder(tmp_path).remove([1])
    with error_of("SOURCE_TRUNCATED", CorruptLog, "epoch 1"):
        loop.latestOffset(start)
    (tmp_path / "epochs" / "2" / "epoch.json").unlink()
    with error_of("CORRUPT_LOOP", CorruptLog, "epochs/2"):
        reader(tmp_path).latestOffset(start)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    other = t.StructType().add("n", t.StringType())
    loop = reader(tmp_path, other)
    write(tmp_path, 0, [1])
    for ask in (
        lambda: target(tmp_path, other),
        lambda: reader(tmp_path, other),
        lambda: loop.latestOffset(loop.initialOffset()),
    ):
        with error_of("CONFIG", ConfigError, "n long", "n string", tmp_path):
            ask()
    # What may differ from plan to plan.
    same = t.StructType().add("n", t.LongType(), nullable=False, metadata={"comment": "a number"})
    target(tmp_path, same)
    reader(tmp_path, same)


def test_the_loop_tells_its_columns_once_it_was_written_to(tmp_path: Path) -> None:
    loop = Loop({"path": str(tmp_path / "loop")})
    with error_of("CONFIG", ConfigError, ".schema(", tmp_path / "loop"):
        loop.schema()
    nested = t.StructType().add("n", t.ArrayType(t.LongType(), containsNull=False), nullable=False)
    LoopFolder(tmp_path / "loop").claim("q", nested.json())
    assert loop.schema() == t.StructType().add("n", t.ArrayType(t.LongType()))


def test_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.parquet").touch()
    for ask in (lambda: target(tmp_path), lambda: reader(tmp_path)):
        with error_of("CONFIG", ConfigError, "not the folder of a loop", tmp_path):
            ask()
    with error_of("CONFIG", ConfigError, "not the folder of a loop"):
        reader(tmp_path / "results.parquet")
    (tmp_path / "loop.json").write_text(json.dumps({"format": "clonos-loop", "version": 2}))
    with error_of("UNSUPPORTED_VERSION", CorruptLog, "version 2", "version 1"):
        reader(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": " "}, "needs option 'path'"),
        ({"path": "s3://a/b"}, "mounted file systems"),
        ({"delay": "10"}, "a number with a unit"),
        ({"delay": "2 fortnights"}, "a number with a unit"),
        ({"untilEmpty": "yes"}, "'true' or 'false'"),
        ({"numPartitions": "0"}, "a whole number from 1 on"),
        ({"dealy": "1s"}, "did you mean 'delay'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoopOptions.read({"path": "/loop", **given})


def test_a_loop_is_exactly_once_and_of_streams(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="always 'exactly_once'"):
        target(tmp_path, guarantee="at_least_once")
    with pytest.raises(ConfigError, match="streaming queries only"):
        LoopBatchWriter(target(tmp_path), None).write(iter([]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "streaming_task", lambda: ("q", 7))
        with pytest.raises(ConfigError, match="number of the batch, 7"):
            LoopBatchWriter(target(tmp_path), "8").write(iter([]))
    assert loop_of(7).retained == 7
    delays = {
        text: LoopOptions.read({"path": "/l", "delay": text}).delay for text in ("1.5 h", "3ms")
    }
    assert delays == {"1.5 h": 5_400_000, "3ms": 3}


def test_rows_are_read_in_the_types_that_spark_takes(tmp_path: Path) -> None:
    schema = t.StructType().add("at", t.TimestampType()).add("each", t.ArrayType(t.StringType()))
    wanted = arrow_schema(schema)
    at = pa.array([1_700_000_000_000_000, None], pa.timestamp("us", "Europe/Berlin"))
    each = pa.array([["a", None], []], pa.list_(pa.string()))
    batches = [pa.record_batch({"at": at, "each": each})] * 2
    part = write_rows(tmp_path / "rows", iter(batches))
    assert part is not None
    assert (part.rows, part.size) == (4, (tmp_path / "rows").stat().st_size)
    found = [conformed(batch, wanted) for batch in read_rows(tmp_path / "rows", part)]
    assert [batch.schema for batch in found] == [wanted] * 2
    assert [batch.to_pylist() for batch in found] == [batch.to_pylist() for batch in batches]
    assert write_rows(tmp_path / "none", iter([])) is None
    assert not (tmp_path / "none").exists()
