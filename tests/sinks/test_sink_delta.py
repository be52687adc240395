"""`clonos-delta` on real Spark and a real table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sink_scene as scene

from clonos._sinks.delta import DeltaTarget
from clonos._sinks.fence import Claim, Driver, EpochFenced
from clonos._sinks.options import Options
from clonos._sinks.place import Place

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
SINK = "clonos-delta"


def options_for(folder: Path, **more: str) -> dict[str, str]:
    return {"path": str(folder / "table"), **more}


def ids(folder: Path) -> list[int]:
    table = pa.table(deltalake.DeltaTable(str(folder / "table")).to_pyarrow_table())
    return sorted(table.column("id").to_pylist())


def test_each_epoch_is_written_once(spark: Any, tmp_path: Path) -> None:
    options = options_for(tmp_path)
    wanted = scene.feed(tmp_path, 0) + scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options, tmp_path)
    assert ids(tmp_path) == wanted
    assert scene.forget_commit(tmp_path / "checkpoint") == 1
    wanted += scene.feed(tmp_path, 2)
    scene.run(spark, SINK, options, tmp_path)
    assert ids(tmp_path) == wanted


def test_at_least_once_writes_again(spark: Any, tmp_path: Path) -> None:
    options = options_for(tmp_path, guarantee="at_least_once")
    first, second = scene.feed(tmp_path, 0), scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options, tmp_path)
    scene.forget_commit(tmp_path / "checkpoint")
    scene.run(spark, SINK, options, tmp_path)
    assert ids(tmp_path) == sorted(first + second + second)


def target_of(spark: Any, folder: Path, **more: str) -> DeltaTarget:
    return DeltaTarget(
        Options(SINK, options_for(folder, **more), DeltaTarget.known), spark.range(1).schema
    )


def commit(target: DeltaTarget, epoch: int, driver: Driver, value: int) -> None:
    batches = iter([pa.record_batch({"id": [value]})])
    staged = [target.stage(Place("q", str(epoch), 0, "a"), batches)]
    target.commit(staged, Claim("q", epoch, driver, str(epoch)))


ONE, TWO = Driver("one", 1, "1"), Driver("two", 2, "2")


def test_of_two_drivers_the_slower_is_fenced(spark: Any, tmp_path: Path) -> None:
    target = target_of(spark, tmp_path)
    commit(target, 0, ONE, 10)
    commit(target, 0, TWO, 20)  # as after a restart: dropped
    commit(target, 1, TWO, 21)
    with pytest.raises(EpochFenced, match=r"host two, pid 2.*host one, pid 1"):
        commit(target, 1, ONE, 11)
    assert ids(tmp_path) == [10, 21]


def test_a_commit_between_reading_the_fence_and_moving_it(spark: Any, tmp_path: Path) -> None:
    target = target_of(spark, tmp_path)
    commit(target, 0, ONE, 10)
    write = DeltaTarget._write

    def overtaken(self: DeltaTarget, *arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(DeltaTarget, "_write", write)
            commit(target, 1, TWO, 21)
        write(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaTarget, "_write", overtaken)
        with pytest.raises(EpochFenced):
            commit(target, 1, ONE, 11)
    assert ids(tmp_path) == [10, 21]


def test_guarantees_when_the_commit_fails_half_way(spark: Any, tmp_path: Path) -> None:
    for guarantee in ("exactly_once", "at_most_once"):
        folder = tmp_path / guarantee
        target = target_of(spark, folder, guarantee=guarantee)
        commit(target, 0, ONE, 10)

        def fails(*_: Any, **__: Any) -> None:
            raise OSError("not now")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deltalake, "write_deltalake", fails)
            with pytest.raises(OSError, match="not now"):
                commit(target, 1, ONE, 11)
        commit(target, 1, TWO, 11)
        commit(target, 2, TWO, 12)
        assert ids(folder) == ([10, 11, 12] if guarantee == "exactly_once" else [10, 12])


def test_batch_jobs_append_replace_and_named_ones_once(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(0, 20, 1, 2)
    for epoch in ({}, {"epoch": "monday"}, {"epoch": "monday"}):
        rows.write.format(SINK).options(**options_for(tmp_path, **epoch)).mode("append").save()
    assert ids(tmp_path) == sorted([*range(20)] * 2)
    rows.write.format(SINK).options(**options_for(tmp_path)).mode("overwrite").save()
    assert ids(tmp_path) == [*range(20)]


def test_a_job_without_rows_makes_a_table_of_its_types(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(0).selectExpr("id", "current_timestamp() at")
    options = options_for(tmp_path, epoch="monday")
    rows.write.format(SINK).options(**options).mode("append").save()
    table = deltalake.DeltaTable(str(tmp_path / "table"))
    assert [field.name for field in table.schema().fields] == ["id", "at"]


def test_first_jobs_without_rows_keep_partitions_and_replacing_by_none_empties(
    spark: Any, tmp_path: Path
) -> None:
    options = options_for(tmp_path, partitionBy="part")
    rows = spark.range(0, 6, 1, 2).selectExpr("id", "id % 2 part")
    for given in (rows.where("false"), rows, rows.where("false")):
        given.write.format(SINK).options(**options).mode("append").save()
    table = deltalake.DeltaTable(str(tmp_path / "table"))
    assert table.metadata().partition_columns == ["part"]
    assert table.version() == 1, "the third adds nothing"
    assert ids(tmp_path) == [*range(6)]
    rows.where("false").write.format(SINK).options(**options).mode("overwrite").save()
    assert ids(tmp_path) == []
