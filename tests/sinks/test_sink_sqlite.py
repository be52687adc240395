"""`clonos-sqlite` on real Spark."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sink_scene as scene

pytestmark = [pytest.mark.spark, pytest.mark.timeout(360)]
SINK = "clonos-sqlite"


def options_for(folder: Path, **more: str) -> dict[str, str]:
    return {"path": str(folder / "results.db"), "table": "words", **more}


def query(folder: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "results.db")) as base:
        found = base.execute(statement).fetchall()
        base.commit()
        return found


def ids(folder: Path) -> list[int]:
    return [row[0] for row in query(folder, "SELECT id FROM words ORDER BY id")]


def test_each_epoch_is_written_once(spark: Any, tmp_path: Path) -> None:
    wanted = scene.feed(tmp_path, 0) + scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options_for(tmp_path), tmp_path)
    assert ids(tmp_path) == wanted
    assert scene.forget_commit(tmp_path / "checkpoint") == 1
    wanted += scene.feed(tmp_path, 2)
    scene.run(spark, SINK, options_for(tmp_path), tmp_path)
    assert ids(tmp_path) == wanted
    assert query(tmp_path, "SELECT epoch FROM _clonos_fence") == [(2,)]


def test_complete_results_replace_the_table(spark: Any, tmp_path: Path) -> None:
    for epoch in (0, 1, 2):
        scene.feed(tmp_path, epoch)
    counts = scene.stream(spark, tmp_path).groupBy("word").count()
    options = options_for(tmp_path)
    scene.begin(counts, SINK, options, tmp_path / "checkpoint", "complete").awaitTermination()
    found = query(tmp_path, 'SELECT word, "count" FROM words ORDER BY word')
    assert found == [(f"word {n}", 3 * scene.ROWS_PER_EPOCH // 5) for n in range(5)]


def test_updates_replace_the_rows_of_a_key(spark: Any, tmp_path: Path) -> None:
    def upsert(df: Any, epoch: int) -> None:
        options = options_for(tmp_path, key="word", epoch=str(epoch))
        df.write.format(SINK).options(**options).mode("append").save()

    for epoch in (0, 1, 2):
        scene.feed(tmp_path, epoch)
        scene.update(spark, tmp_path, upsert)
    scene.forget_commit(tmp_path / "checkpoint")
    query(tmp_path, "UPDATE words SET count = count + 1")
    scene.update(spark, tmp_path, upsert)
    found = query(tmp_path, 'SELECT word, "count" FROM words ORDER BY word')
    # The counts that the test changed stand: the last epoch was not written again.
    assert found == [(f"word {n}", 3 * scene.ROWS_PER_EPOCH // 5 + 1) for n in range(5)]
    assert query(tmp_path, "SELECT epoch FROM _clonos_fence") == [(2,)]


def test_guarantees_when_the_commit_fails_half_way(spark: Any, tmp_path: Path) -> None:
    for guarantee in ("exactly_once", "at_most_once"):
        folder = tmp_path / guarantee
        options = options_for(folder, guarantee=guarantee)
        first = scene.feed(folder, 0)
        scene.run(spark, SINK, options, folder)
        second = scene.feed(folder, 1)
        fail = "BEGIN SELECT RAISE(ABORT, 'not now'); END"
        query(folder, f"CREATE TRIGGER no AFTER INSERT ON words WHEN NEW.id % 7 = 0 {fail}")
        with pytest.raises(Exception, match="not now"):
            scene.run(spark, SINK, options, folder)
        query(folder, "DROP TRIGGER no")
        third = scene.feed(folder, 2)
        scene.run(spark, SINK, options, folder)
        lost = [] if guarantee == "exactly_once" else second
        assert ids(folder) == [n for n in first + second + third if n not in lost]


def test_at_least_once_writes_again(spark: Any, tmp_path: Path) -> None:
    options = options_for(tmp_path, guarantee="at_least_once")
    first, second = scene.feed(tmp_path, 0), scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options, tmp_path)
    scene.forget_commit(tmp_path / "checkpoint")
    scene.run(spark, SINK, options, tmp_path)
    assert ids(tmp_path) == sorted(first + second + second)


def test_batch_jobs_append_and_named_ones_once(spark: Any, tmp_path: Path) -> None:
    df = spark.range(0, 50, 1, 3)
    for epoch in ({}, {}, {"epoch": "monday"}, {"epoch": "monday"}, {"epoch": "tuesday"}):
        df.write.format(SINK).options(**options_for(tmp_path, **epoch)).mode("append").save()
    assert ids(tmp_path) == sorted([*range(50)] * 4)
    df.write.format(SINK).options(**options_for(tmp_path)).mode("overwrite").save()
    assert ids(tmp_path) == [*range(50)]


def test_every_type_is_kept(spark: Any, tmp_path: Path) -> None:
    schema = """
        id int, name string, amount decimal(20, 4), day date, at timestamp, plain timestamp_ntz,
        raw binary, flag boolean, ratio double, tags array<string>, more map<string, int>,
        inner struct<x: int, y: array<double>>, small tinyint, nothing string
    """
    at = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    full = (
        1,
        'a "name"',
        decimal.Decimal("12.5"),
        at.date(),
        at,
        dt.datetime(2026, 1, 1, 12),
        b"\x00\xff",
        True,
        0.5,
        ["t", None],
        {"k": 1},
        (1, [0.5, None]),
        100,
        None,
    )
    df = spark.createDataFrame([full, (2, *([None] * 13))], schema)
    df.write.format(SINK).options(**options_for(tmp_path)).mode("append").save()
    one, two = query(tmp_path, "SELECT * FROM words ORDER BY id")
    nested = [json.loads(one[n]) for n in (9, 10, 11)]
    assert nested == [["t", None], {"k": 1}, {"x": 1, "y": [0.5, None]}]
    assert one[:9] == (
        1,
        'a "name"',
        "12.5000",
        "2026-01-01",
        "2026-01-01T12:00:00.000000Z",
        "2026-01-01T12:00:00.000000",
        b"\x00\xff",
        1,
        0.5,
    )
    assert one[12:] == (100, None)
    assert two == (2, *([None] * 13))


def test_too_many_rows_for_the_driver_are_refused(spark: Any, tmp_path: Path) -> None:
    options = options_for(tmp_path, maxTaskBytes="1KiB")
    with pytest.raises(Exception, match="Use more partitions"):
        spark.range(100_000).write.format(SINK).options(**options).mode("append").save()


def test_a_key_must_be_a_column(spark: Any, tmp_path: Path) -> None:
    options = options_for(tmp_path, key="id,wrod")
    with pytest.raises(Exception, match="option key='wrod'"):
        spark.range(1).write.format(SINK).options(**options).mode("append").save()
