"""Rows that come back through a loop in a later batch, on a real Spark."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import col, lit
from versions import since_42

import clonos
from clonos import causal

pytestmark = pytest.mark.timeout(360)
ROWS = 12
MOST_TRIES = 3
TYPES = (
    "id",
    "cast(id as tinyint) as small",
    "cast(id as decimal(20, 3)) as amount",
    "cast(id as float) as ratio",
    "cast('x' as binary) as raw",
    "id > 1 as flag",
    "date'2024-02-29' as day",
    "timestamp'2024-02-29 12:34:56.789012' as at",
    "timestamp_ntz'2024-02-29 12:34:56.789012' as plain",
    "interval '1 02:03:04.5' day to second as elapsed",
    "array(id, null) as list",
    "map('k', array(id)) as table",
    "named_struct('x', id, 'y', array(named_struct('z', timestamp'2024-02-29 12:34:56'))) as inner",
    "parse_json('{\"a\": [1, 2]}') as document",
    "cast(null as string) as nothing",
)


def put(folder: Path, *ids: int) -> None:
    folder.mkdir(exist_ok=True)
    name = f"{len(list(folder.iterdir())):03d}.json"
    draft = folder.with_name(name)
    draft.write_text("".join(json.dumps({"id": n}) + "\n" for n in ids))
    draft.rename(folder / name)


def start(df: Any, folder: Path, **writer: Any) -> Any:
    stream = df.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    if "each" in writer:
        stream = stream.foreachBatch(writer["each"])
    else:
        stream = stream.format("clonos-loop").option("path", str(folder / "loop"))
    return stream.trigger(availableNow=True).start()


@since_42
def test_rows_come_back_in_later_batches_until_they_are_done(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    loop = str(tmp_path / "loop")
    attempts: dict[int, list[Any]] = defaultdict(list)

    @causal("boolean", uid="attempt")
    def succeeds(_id: int, tries: int) -> bool:
        return tries == MOST_TRIES or random.random() < 0.2

    @session.foreach_batch
    def write(batch: Any, number: int) -> None:
        failed = batch.where("not done").select("id", "tries")
        failed.write.format("clonos-loop").mode("append").save(loop)
        attempts[number].append(sorted(map(tuple, batch.collect())))
        if len(attempts[number]) == 1 and number == 1:
            raise RuntimeError("the query fails here")

    def run() -> Any:
        rows = spark.readStream.schema("id long").json(str(tmp_path / "in"))
        again = spark.readStream.format("clonos-loop").schema("id long, tries int")
        again = again.option("untilEmpty", "true").load(loop)
        tried = rows.withColumn("tries", lit(0)).unionByName(again)
        tried = tried.withColumn("tries", col("tries") + 1)
        return start(tried.withColumn("done", succeeds("id", "tries")), tmp_path, each=write)

    put(tmp_path / "in", *range(ROWS))
    with pytest.raises(StreamingQueryException, match="the query fails here"):
        run().awaitTermination()
    run().awaitTermination()
    # The batch that ran again had the same rows, and its answers.
    assert [len(runs) for runs in attempts.values()] == [1, 2, 1]
    assert attempts[1][0] == attempts[1][1]
    for number, (rows, *_) in attempts.items():
        assert {tries for _, tries, _ in rows} == {number + 1}
    for number in (0, 1):
        failed = [row for row, _, done in attempts[number][0] if not done]
        assert failed == [row for row, _, _ in attempts[number + 1][0]]
        assert failed
    # Nothing is left, and nothing runs.
    run().awaitTermination()
    assert list(attempts) == [0, 1, 2]


@since_42
@pytest.mark.whole
def test_a_query_that_is_taken_back_takes_the_loop_back(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    loop, tries = tmp_path / "loop", col("tries")
    batches: dict[int, list[Any]] = {}

    def write(batch: Any, number: int) -> None:
        batches[number] = sorted(map(tuple, batch.collect()))
        failed = batch.where(f"tries < {MOST_TRIES}").write.format("clonos-loop")
        failed.mode("append").save(str(loop))

    def run() -> Any:
        rows = spark.readStream.schema("id long").json(str(tmp_path / "in"))
        again = spark.readStream.format("clonos-loop").schema("id long, tries int")
        again = again.option("untilEmpty", "true").load(str(loop))
        tried = rows.withColumn("tries", lit(0)).unionByName(again)
        return start(tried.withColumn("tries", tries + 1), tmp_path, each=write)

    put(tmp_path / "in", 7, 8)
    run().awaitTermination()
    wanted = {number: [(7, number + 1), (8, number + 1)] for number in range(MOST_TRIES)}
    assert batches == wanted
    # Batch 1 is to run again, and those after it.
    for kind, first in (("offsets", 2), ("commits", 1)):
        for path in (tmp_path / "checkpoint" / kind).iterdir():
            name = path.name.strip(".").removesuffix(".crc")
            if name.isdecimal() and int(name) >= first:
                path.unlink()
    batches.clear()
    query = run()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    error = clonos.errors.find(query.exception())
    assert error is not None
    assert error.condition == "EPOCH_FENCED"
    assert "remove the folders 1 and later" in error.message
    for epoch in (1, 2):
        shutil.rmtree(loop / "epochs" / str(epoch))
    run().awaitTermination()
    assert batches == {number: wanted[number] for number in (1, 2)}


@pytest.mark.whole
def test_a_loop_of_two_queries_keeps_all_types(spark: Any, session: Any, tmp_path: Path) -> None:
    put(tmp_path / "in", 1, 2)
    rows = spark.readStream.schema("id long").json(str(tmp_path / "in")).selectExpr(*TYPES)
    start(rows, tmp_path).awaitTermination()
    # The loop says which columns it has.
    found: list[Any] = []
    reader = spark.readStream.format("clonos-loop").load(str(tmp_path / "loop"))
    (tmp_path / "reader").mkdir()
    start(
        reader, tmp_path / "reader", each=lambda b, _: found.extend(b.collect())
    ).awaitTermination()
    wanted = spark.range(1, 3).selectExpr(*TYPES)
    assert reader.dtypes == wanted.dtypes
    assert sorted(map(str, found)) == sorted(map(str, wanted.collect()))

    def write_twice(batch: Any, number: int) -> None:
        for _ in range(2):
            batch.write.format("clonos-loop").mode("append").save(str(tmp_path / "once"))

    (tmp_path / "twice").mkdir()
    query = start(rows, tmp_path / "twice", each=write_twice)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    error = clonos.errors.find(query.exception())
    assert error is not None
    assert "An epoch writes to a loop once" in error.message
