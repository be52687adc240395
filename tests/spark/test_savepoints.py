"""Savepoints on real Spark: other queries go on with them, and are read as Spark's state is."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import clonos
from clonos.cli.inspection import look
from clonos.errors import ClonosError, ConfigError
from clonos.testing import wait_until

pytestmark = pytest.mark.timeout(600)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OUTPUT = "id string, sum long, all string, by string"


class Sums(StatefulProcessor):
    """Keeps a sum, all numbers and counts of each, and tells all of that."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sum = handle.getValueState("sum", "n long")
        self.last = handle.getValueState("last", "n long", ttlDurationMs=3_600_000)
        self.all = handle.getListState("all", "n long")
        self.by = handle.getMapState("by", "n long", "count long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for n in sorted(row.n for row in rows):
            self.sum.update(((self.sum.get() or (0,))[0] + n,))
            self.last.update((n,))
            self.all.appendValue((n,))
            count = self.by.getValue((n % 3,))
            self.by.updateValue((n % 3,), ((count[0] if count else 0) + 1,))
            self.handle.registerTimer(10**15 + n)
        (total,) = self.sum.get()
        numbers = [n for (n,) in self.all.get()]
        by = sorted((n, count) for (n,), (count,) in self.by.iterator())
        yield Row(id=key[0], sum=total, all=repr(numbers), by=repr(by))

    def close(self) -> None:
        """End."""


class Files:
    """A source of files, one batch each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def put(self, batch: int) -> None:
        rows = [{"id": f"k{n % 7}", "n": n * batch} for n in range(20)]
        hidden = self.path / f".{batch}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (1_700_000_000 + batch,) * 2)
        hidden.rename(self.path / f"{batch}.json")

    def read(self, spark: Any) -> Any:
        reader = spark.readStream.schema("id string, n long")
        return reader.option("maxFilesPerTrigger", 1).json(str(self.path))


def sums(files: Files, spark: Any, **options: Any) -> Any:
    grouped = files.read(spark).groupBy("id")
    mode = "processingTime"
    return clonos.transform_with_state(
        *(grouped, Sums(), OUTPUT, "update", mode), **{"uid": "sums", **options}
    )


def started(df: Any, checkpoint: Path, found: list[Any], name: str | None = None) -> Any:
    """Run a stream over what there is; `found` has its output by batch."""

    def keep(batch: Any, _number: int) -> None:
        if rows := sorted(map(tuple, batch.collect())):
            found.append(rows)

    writer = df.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
    if name is not None:
        writer = writer.queryName(name)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    return query


def batches(df: Any, checkpoint: Path) -> list[Any]:
    found: list[Any] = []
    started(df, checkpoint, found)
    return found


def first_batches(count: int, df: Any, checkpoint: Path) -> list[Any]:
    """As `batches`, for what has batches without rows and without end in Spark."""
    found: list[Any] = []

    def keep(batch: Any, _number: int) -> None:
        if rows := sorted(map(tuple, batch.collect())):
            found.append(rows)

    writer = df.writeStream.outputMode("update").foreachBatch(keep)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        wait_until(lambda: query.lastProgress and query.lastProgress.batchId >= count, "batches")
    finally:
        query.stop()
    return found


def state(spark: Any, path: Path, **options: Any) -> Any:
    return spark.read.format("clonos-state").options(**options).load(str(path))


def without_partition(df: Any) -> list[str]:
    return sorted(repr(row) for row in df.drop("partition_id").collect())


def test_another_query_goes_on_exactly_where_the_savepoint_was_made(
    plain_spark: Any, tmp_path: Path
) -> None:
    files, later = Files(tmp_path / "in"), Files(tmp_path / "later")
    with clonos.attach(plain_spark) as session:
        for batch in (1, 2, 3):
            files.put(batch)
        before: list[Any] = []
        query = started(sums(files, plain_spark), tmp_path / "c1", before, "first")
        # By its name, its id, and itself; after it has ended.
        for number, named in enumerate(["first", str(query.id), query]):
            session.savepoint(named, tmp_path / f"saved{number}")
        with pytest.raises(ConfigError, match="exists already"):
            session.savepoint(query, tmp_path / "saved0")
        with pytest.raises(ConfigError, match="no keyed state of query nope"):
            session.savepoint("nope", tmp_path / "nope")
        for batch in (4, 5):
            files.put(batch)
        expected = batches(sums(files, plain_spark), tmp_path / "c1")
        assert (len(before), len(expected)) == (3, 2)
    # Another application, another query, other partitions.
    with clonos.attach(plain_spark):
        later.put(4)
        saved = tmp_path / "saved1"
        first = batches(sums(later, plain_spark, partitions=5, state_from=saved), tmp_path / "c2")
        later.put(5)
        # The program is started again: what it has by now is what counts.
        second = batches(sums(later, plain_spark, partitions=2, state_from=saved), tmp_path / "c2")
        assert [*first, *second] == expected


def test_a_savepoint_that_cannot_be_begun_with_is_refused_before_the_first_batch(
    plain_spark: Any, tmp_path: Path
) -> None:
    files = Files(tmp_path / "in")
    files.put(1)
    with clonos.attach(plain_spark) as session:
        query = started(sums(files, plain_spark), tmp_path / "c", [])
        saved = tmp_path / "saved"
        session.savepoint(query, saved)
        with pytest.raises(ConfigError, match="there is nothing"):
            sums(files, plain_spark, state_from=tmp_path / "nowhere")
        with pytest.raises(ConfigError, match=r'has no state of operator "other"; .* "sums"'):
            sums(files, plain_spark, state_from=saved, uid="other")
        grouped = files.read(plain_spark).groupBy("n")
        arguments = (grouped, Sums(), OUTPUT, "update", "processingTime")
        with pytest.raises(ClonosError, match="the grouping key was kept as"):
            clonos.transform_with_state(*arguments, uid="sums", state_from=saved)
        initial = plain_spark.createDataFrame([("a", 1)], "id string, n long").groupBy("id")
        with pytest.raises(ConfigError, match="not with both"):
            sums(files, plain_spark, state_from=saved, initial_state=initial)
        replaced = sums(files, plain_spark, state_from=saved)
        saved.rename(tmp_path / "older")
        session.savepoint(query, saved)
        with pytest.raises(Exception, match="is another savepoint than"):
            started(replaced, tmp_path / "c2", [])
        # What `clonos inspect` finds: neither what was not finished, nor files of others.
        shutil.copytree(saved, tmp_path / "saved.0000000000000001.unfinished")
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "savepoint").write_text("mine")
        reports, problems = look(str(tmp_path))
        assert problems == []
        found = sorted((report["title"], report["states"][0]["keys"]) for report in reports)
        assert found == [(f"savepoint {name}", 7) for name in (tmp_path / "older", saved)]
        manifest = saved / "savepoint"
        damaged = bytearray(manifest.read_bytes())
        damaged[-1] ^= 1
        manifest.write_bytes(damaged)
        with pytest.raises(ClonosError, match="checksum"):
            sums(files, plain_spark, state_from=saved)
        reports, (problem,) = look(str(saved))
        assert reports == []
        assert "checksum" in problem


def test_state_is_read_with_the_columns_and_rows_of_sparks_reader(
    plain_spark: Any, tmp_path: Path
) -> None:
    pytest.importorskip("google.protobuf", reason="Spark's own operator needs protobuf")
    spark = plain_spark
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS_DB)
    files = Files(tmp_path / "in")
    for batch in (1, 2, 3):
        files.put(batch)
    theirs = files.read(spark).groupBy("id")
    theirs = theirs.transformWithState(Sums(), OUTPUT, "update", "processingTime")
    told = first_batches(3, theirs, tmp_path / "theirs")
    checkpoint = tmp_path / "kept"
    with clonos.attach(spark, checkpoint_dir=checkpoint) as session:
        found: list[Any] = []
        query = started(sums(files, spark), tmp_path / "ours", found)
        assert found == told
        session.savepoint(query, tmp_path / "saved")
        for options in (
            {"stateVarName": "sum"},
            {"stateVarName": "all"},
            {"stateVarName": "all", "flattenCollectionTypes": "false"},
            {"stateVarName": "by"},
            {"stateVarName": "by", "flattenCollectionTypes": "false"},
            {"readRegisteredTimers": "true"},
        ):
            expected = spark.read.format("statestore").options(**options)
            expected = expected.load(str(tmp_path / "theirs"))
            for path in (tmp_path / "saved", checkpoint):
                df = state(spark, path, **options)
                assert df.schema.simpleString() == expected.schema.simpleString()
                assert without_partition(df) == without_partition(expected), options
        # The times at which values are over are those of the batches.
        expected = spark.read.format("statestore").option("stateVarName", "last")
        expected = expected.load(str(tmp_path / "theirs"))
        df = state(spark, tmp_path / "saved", stateVarName="last", numPartitions="3")
        assert df.schema.simpleString() == expected.schema.simpleString()
        values = [sorted((r.key.id, r.value.value.n) for r in d.collect()) for d in (df, expected)]
        assert values[0] == values[1]
        assert all(row.value.ttlExpirationMs > 1.6e12 for row in df.collect())
        assert {row.partition_id for row in df.collect()} <= {0, 1, 2}
        # What the second batch left, as the processor told it then.
        latest = {key: total for batch in told[:2] for key, total, *_ in batch}
        earlier = state(spark, checkpoint, stateVarName="sum", batchId="1", operator="sums")
        assert {row.key.id: row.value.n for row in earlier.collect()} == latest
        for wrong, message in (
            ({"stateVarName": "nope"}, "there is sum, last, all, by"),
            ({"stateVarName": "sum", "operator": "nope"}, 'operator "sums"'),
            ({"stateVarName": "sum", "batchId": "9"}, "epochs 0, 1, 2 left it"),
            ({"stateVarName": "sum", "flatten": "true"}, "no option"),
        ):
            with pytest.raises(Exception, match=message):
                state(spark, checkpoint, **wrong).collect()
