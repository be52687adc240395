"""`clonos-postgresql` against a real server, which is also stopped while a query runs."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sink_scene as scene
from sink_servers import Postgres

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(360)]
SINK = "clonos-postgresql"
# Small epochs travel in messages, unless every row goes through staging tables.
STAGED = {"stageAbove": "1"}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    started = Postgres()
    yield started
    started.close()


@pytest.fixture
def table(server: Postgres) -> Iterator[str]:
    yield "words"
    if not server.is_up():
        server.start()
    query(server, "DROP TABLE IF EXISTS words, _clonos_fence, _clonos_claims")


def query(server: Postgres, statement: str) -> list[Any]:
    with psycopg.connect(server.url) as link:
        cursor = link.execute(statement)
        return cursor.fetchall() if cursor.description else []


def options_for(server: Postgres, **more: str) -> dict[str, str]:
    return {"url": server.url, "table": "words", **more}


def ids(server: Postgres) -> list[int]:
    return [row[0] for row in query(server, "SELECT id FROM words ORDER BY id")]


def staging_tables(server: Postgres) -> list[Any]:
    return query(server, r"SELECT relname FROM pg_class WHERE relname LIKE '\_clonos\_s\_%'")


@pytest.mark.parametrize("how", [{}, STAGED, {**STAGED, "staging": "unlogged"}])
def test_each_epoch_is_written_once(
    spark: Any, server: Postgres, table: str, tmp_path: Path, how: dict[str, str]
) -> None:
    options = options_for(server, **how)
    wanted = scene.feed(tmp_path, 0) + scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options, tmp_path)
    assert ids(server) == wanted
    assert scene.forget_commit(tmp_path / "checkpoint") == 1
    wanted += scene.feed(tmp_path, 2)
    scene.run(spark, SINK, options, tmp_path)
    assert ids(server) == wanted
    assert query(server, "SELECT epoch FROM _clonos_fence") == [(2,)]
    assert staging_tables(server) == []


@pytest.mark.parametrize("how", [{}, STAGED])
def test_updates_replace_the_rows_of_a_key(
    spark: Any, server: Postgres, table: str, tmp_path: Path, how: dict[str, str]
) -> None:
    def upsert(df: Any, epoch: int) -> None:
        options = options_for(server, key="word", epoch=str(epoch), **how)
        df.write.format(SINK).options(**options).mode("append").save()

    for epoch in (0, 1, 2):
        scene.feed(tmp_path, epoch)
    scene.update(spark, tmp_path, upsert)
    found = query(server, 'SELECT word, "count" FROM words ORDER BY word')
    assert found == [(f"word {n}", 3 * scene.ROWS_PER_EPOCH // 5) for n in range(5)]


@pytest.mark.parametrize("how", [{}, STAGED])
def test_a_server_that_is_down_only_delays(
    spark: Any, server: Postgres, table: str, tmp_path: Path, how: dict[str, str]
) -> None:
    wanted = scene.feed(tmp_path, 0)
    options = options_for(server, **how)
    scene.run(spark, SINK, options, tmp_path)
    wanted += scene.feed(tmp_path, 1) + scene.feed(tmp_path, 2)
    server.stop()
    starter = threading.Timer(4, server.start)
    starter.start()
    before = time.monotonic()
    scene.run(spark, SINK, options, tmp_path)
    starter.join()
    assert time.monotonic() - before >= 4
    assert ids(server) == wanted


def test_a_crash_of_the_server_in_the_middle_of_a_commit(
    spark: Any, server: Postgres, table: str, tmp_path: Path
) -> None:
    wanted = scene.feed(tmp_path, 0)
    scene.run(spark, SINK, options_for(server), tmp_path)
    wanted += scene.feed(tmp_path, 1)
    holder = psycopg.connect(server.url)
    holder.execute("LOCK TABLE words IN SHARE MODE")
    writer = scene.begin(
        scene.stream(spark, tmp_path), SINK, options_for(server), tmp_path / "checkpoint", "append"
    )
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
    scene.wait_until(lambda: query(server, waiting), "the commit waits for the lock")
    server.stop()
    holder.close()
    server.start()
    writer.awaitTermination()
    assert ids(server) == wanted


def test_a_server_that_stays_down_is_an_error(
    spark: Any, server: Postgres, table: str, tmp_path: Path
) -> None:
    wanted = scene.feed(tmp_path, 0)
    server.stop()
    try:
        with pytest.raises(Exception, match=r"SINK_UNREACHABLE.*option retrySeconds"):
            scene.run(spark, SINK, options_for(server, retrySeconds="1"), tmp_path)
    finally:
        server.start()
    scene.run(spark, SINK, options_for(server), tmp_path)
    assert ids(server) == wanted


def test_guarantees_when_the_commit_fails_half_way(
    spark: Any, server: Postgres, table: str, tmp_path: Path
) -> None:
    for guarantee in ("exactly_once", "at_most_once"):
        folder = tmp_path / guarantee
        options = options_for(server, guarantee=guarantee)
        first = scene.feed(folder, 0)
        scene.run(spark, SINK, options, folder)
        second = scene.feed(folder, 1)
        query(server, f"ALTER TABLE words ADD CONSTRAINT no CHECK (id <> {second[7]}) NOT VALID")
        with pytest.raises(Exception, match="violates check constraint"):
            scene.run(spark, SINK, options, folder)
        query(server, "ALTER TABLE words DROP CONSTRAINT no")
        third = scene.feed(folder, 2)
        scene.run(spark, SINK, options, folder)
        lost = [] if guarantee == "exactly_once" else second
        assert ids(server) == [n for n in first + second + third if n not in lost]
        query(server, "DROP TABLE words")


def test_at_least_once_writes_again(
    spark: Any, server: Postgres, table: str, tmp_path: Path
) -> None:
    options = options_for(server, guarantee="at_least_once")
    first, second = scene.feed(tmp_path, 0), scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options, tmp_path)
    scene.forget_commit(tmp_path / "checkpoint")
    scene.run(spark, SINK, options, tmp_path)
    assert ids(server) == sorted(first + second + second)


def test_rows_of_an_unlogged_staging_table_that_are_gone_are_missed(
    spark: Any, server: Postgres, table: str, tmp_path: Path
) -> None:
    from clonos._sinks.fence import Claim, Driver
    from clonos._sinks.messages import Staged
    from clonos._sinks.options import Options
    from clonos._sinks.postgresql import PostgresqlTarget
    from clonos.errors import ClonosError

    options = Options(SINK, options_for(server), PostgresqlTarget.known)
    target = PostgresqlTarget(options, spark.range(1).schema)
    query(server, "CREATE TABLE stub (id bigint)")
    staged = [Staged("q", 3, {'"stub"': 3})]
    with pytest.raises(ClonosError, match=r"holds 0 rows of the 3.*staging='logged'"):
        target.commit(staged, Claim("q", 0, Driver("h", 1, "2"), "0"))
    assert query(server, "SELECT * FROM _clonos_fence") == []
    query(server, "DROP TABLE stub")


@pytest.mark.parametrize("how", [{}, STAGED])
def test_batch_jobs_and_every_type(
    spark: Any, server: Postgres, table: str, how: dict[str, str]
) -> None:
    schema = """
        id int, name string, amount decimal(20, 4), day date, at timestamp, plain timestamp_ntz,
        raw binary, flag boolean, ratio double, tags array<string>, more map<string, int>,
        inner struct<x: int, y: array<double>>, small tinyint, nothing string, empty string
    """
    at = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    plain = dt.datetime(2026, 1, 1, 12)
    full = (
        *(1, 'a "name",\n', decimal.Decimal("12.5"), at.date(), at, plain, b"\x00\xff", True),
        *(float("nan"), ["t", None], {"k": 1}, (1, [0.5, None]), 100, None, ""),
    )
    df = spark.createDataFrame([full, (2, *([None] * 14))], schema)
    for epoch in ({"epoch": "monday"}, {"epoch": "monday"}, {}):
        options = options_for(server, **how, **epoch)
        df.write.format(SINK).options(**options).mode("append").save()
    one, again, two, _ = query(server, "SELECT * FROM words ORDER BY id")
    assert one[:8] == again[:8] == full[:8]
    assert str(one[8]) == "nan"
    assert one[9:] == (["t", None], {"k": 1}, {"x": 1, "y": [0.5, None]}, 100, None, "")
    assert two == (2, *([None] * 14))


def test_tables_in_other_schemas(spark: Any, server: Postgres) -> None:
    query(server, 'CREATE SCHEMA "Other One"')
    options = {"url": server.url, "table": "Other One.some", **STAGED}
    for _ in range(2):
        writer = spark.range(5).write.format(SINK).options(**options, epoch="x")
        writer.mode("append").save()
    assert query(server, 'SELECT count(*) FROM "Other One".some') == [(5,)]
    assert staging_tables(server) == []
