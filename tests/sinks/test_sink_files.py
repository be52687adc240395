"""`clonos-files` on real Spark."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sink_scene as scene

from clonos._sinks import durable
from clonos._sinks.fence import Claim, Driver, EpochFenced
from clonos._sinks.files import FilesTarget
from clonos._sinks.options import Options
from clonos._sinks.place import Place

pytestmark = [pytest.mark.spark, pytest.mark.timeout(360)]
SINK = "clonos-files"


def options_for(folder: Path, **more: str) -> dict[str, str]:
    return {"path": str(folder / "out"), **more}


def ids(spark: Any, folder: Path, fmt: str = "parquet") -> list[int]:
    return sorted(row.id for row in spark.read.format(fmt).load(str(folder / "out")).collect())


def staged(folder: Path) -> list[Path]:
    return [p for p in (folder / "out" / "_clonos" / "staging").rglob("*") if p.is_file()]


@pytest.mark.parametrize(
    ("fmt", "compression"),
    [("parquet", "zstd"), ("parquet", "none"), ("jsonl", "none"), ("jsonl", "gzip")],
)
def test_each_epoch_is_one_folder(spark: Any, tmp_path: Path, fmt: str, compression: str) -> None:
    options = options_for(tmp_path, fileFormat=fmt, compression=compression)
    wanted = scene.feed(tmp_path, 0) + scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options, tmp_path)
    reader = "json" if fmt == "jsonl" else fmt
    assert ids(spark, tmp_path, reader) == wanted
    read = spark.read.format(reader).load(str(tmp_path / "out"))
    assert sorted(read.columns) == ["epoch", "id", "word"]
    assert {row.epoch for row in read.select("epoch").distinct().collect()} == {0, 1}
    assert staged(tmp_path) == []


def test_an_epoch_that_is_run_again_is_dropped(spark: Any, tmp_path: Path) -> None:
    wanted = scene.feed(tmp_path, 0) + scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options_for(tmp_path), tmp_path)
    before = sorted((tmp_path / "out" / "epoch=1").iterdir())
    assert scene.forget_commit(tmp_path / "checkpoint") == 1
    wanted += scene.feed(tmp_path, 2)
    scene.run(spark, SINK, options_for(tmp_path), tmp_path)
    assert sorted((tmp_path / "out" / "epoch=1").iterdir()) == before
    assert ids(spark, tmp_path) == wanted
    assert staged(tmp_path) == []


def test_staged_rows_are_not_seen_and_go_with_the_next_commit(spark: Any, tmp_path: Path) -> None:
    wanted = scene.feed(tmp_path, 0)
    scene.run(spark, SINK, options_for(tmp_path), tmp_path)
    out = tmp_path / "out"
    query = durable.read_json(out / "_clonos" / "owner.json")["query"]
    # What a driver killed in its commit leaves: rows of an attempt, rows already gathered.
    file = next((out / "epoch=0").glob("*.parquet"))
    for name in ("attempt", "gathered"):
        left = out / "_clonos" / "staging" / query / "1" / name
        left.mkdir(parents=True)
        (left / "part-00000-x.parquet").write_bytes(file.read_bytes())
    assert ids(spark, tmp_path) == wanted
    wanted += scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options_for(tmp_path), tmp_path)
    assert ids(spark, tmp_path) == wanted
    assert staged(tmp_path) == []


def test_another_query_may_not_use_the_folder(spark: Any, tmp_path: Path) -> None:
    scene.feed(tmp_path, 0)
    scene.run(spark, SINK, options_for(tmp_path), tmp_path)
    other = scene.begin(
        scene.stream(spark, tmp_path), SINK, options_for(tmp_path), tmp_path / "other", "append"
    )
    with pytest.raises(Exception, match="belongs to query"):
        other.awaitTermination()
    assert "option path" in str(other.exception())


def test_of_two_drivers_the_slower_is_fenced(tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StructType

    options = Options(SINK, options_for(tmp_path), FilesTarget.known)
    target = FilesTarget(options, StructType().add("id", LongType()))
    one, two = Driver("one", 1, "1"), Driver("two", 2, "2")

    def commit(epoch: int, driver: Driver, value: int) -> None:
        rows = iter([pa.record_batch({"id": [value]})])
        staged = [target.stage(Place("q", str(epoch), 0, uuid.uuid4().hex), rows)]
        target.commit(staged, Claim("q", epoch, driver, str(epoch)))

    commit(0, one, 10)
    commit(0, two, 20)  # as after a restart: dropped
    commit(1, two, 21)
    with pytest.raises(EpochFenced, match=r"host two, pid 2.*host one, pid 1"):
        commit(1, one, 11)
    # Where the lock does not reach, on another host, the rename decides.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FilesTarget, "_fence", lambda *_: None)
        with pytest.raises(EpochFenced, match="has taken over"):
            commit(1, one, 11)
    found = [
        pq.read_table(path)["id"].to_pylist() for path in (tmp_path / "out").glob("epoch=*/p*")
    ]
    assert sorted(found) == [[10], [21]]


def test_guarantees_when_the_commit_fails_half_way(spark: Any, tmp_path: Path) -> None:
    for guarantee in ("exactly_once", "at_most_once"):
        folder = tmp_path / guarantee
        options = options_for(folder, guarantee=guarantee)
        first = scene.feed(folder, 0)
        scene.run(spark, SINK, options, folder)
        second = scene.feed(folder, 1)
        # A file where the folder belongs: everything is done but the last rename.
        blocker = folder / "out" / "epoch=1"
        blocker.touch()
        with pytest.raises(Exception, match="Not a directory"):
            scene.run(spark, SINK, options, folder)
        blocker.unlink()
        third = scene.feed(folder, 2)
        scene.run(spark, SINK, options, folder)
        lost = [] if guarantee == "exactly_once" else second
        assert ids(spark, folder) == [n for n in first + second + third if n not in lost]
        assert staged(folder) == []


def test_at_least_once_writes_again(spark: Any, tmp_path: Path) -> None:
    options = options_for(tmp_path, guarantee="at_least_once")
    first, second = scene.feed(tmp_path, 0), scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options, tmp_path)
    assert ids(spark, tmp_path) == first + second
    scene.forget_commit(tmp_path / "checkpoint")
    scene.run(spark, SINK, options, tmp_path)
    assert ids(spark, tmp_path) == sorted(first + second + second)


def test_batch_jobs_append_and_named_ones_once(spark: Any, tmp_path: Path) -> None:
    df = spark.range(0, 50, 1, 3)
    for _ in range(2):
        df.write.format(SINK).options(**options_for(tmp_path)).mode("append").save()
    assert ids(spark, tmp_path) == sorted([*range(50), *range(50)])
    for _ in range(2):
        named = df.write.format(SINK).options(**options_for(tmp_path, epoch="nightly run/1"))
        named.mode("append").save()
    assert ids(spark, tmp_path) == sorted([*range(50)] * 3)
    found = spark.read.parquet(str(tmp_path / "out")).where("epoch = 'nightly run/1'")
    assert found.count() == 50
    assert staged(tmp_path) == []


def test_large_partitions_have_several_row_groups(spark: Any, tmp_path: Path) -> None:
    options = options_for(tmp_path, rowGroupBytes="256KiB")
    spark.range(0, 100_000, 1, 1).write.format(SINK).options(**options).mode("append").save()
    (file,) = (tmp_path / "out").glob("epoch=*/*.parquet")
    metadata = pq.ParquetFile(file).metadata
    assert metadata.num_rows == 100_000
    assert 2 <= metadata.num_row_groups <= 5


def test_overwriting_and_misspelt_options_are_refused(spark: Any, tmp_path: Path) -> None:
    writer = spark.range(3).write.format(SINK)
    with pytest.raises(Exception, match="cannot replace what is there"):
        writer.options(**options_for(tmp_path)).mode("overwrite").save()
    with pytest.raises(Exception, match="has no option 'fileformt'"):
        writer.options(**options_for(tmp_path, fileFormt="parquet")).mode("append").save()


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("id as Epoch", "readers find the epoch's name"),
        ("id, id + 1 as ID", "two of that name"),
        ("id, array(interval '1' day) as waits", "interval day, which would be read as something"),
    ],
)
def test_columns_that_would_come_back_as_others_are_refused(
    spark: Any, tmp_path: Path, columns: str, reason: str
) -> None:
    spark.range(3).createOrReplaceTempView("three")
    rows = spark.sql(f"select {columns} from three")
    with pytest.raises(Exception, match=reason):
        rows.write.mode("append").format(SINK).options(**options_for(tmp_path)).save()
    assert not (tmp_path / "out").exists()
