"""Sinks whose drivers are killed in the middle of a commit, or are two."""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sink_scene as scene
from sink_servers import Postgres

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(240)]


TABLE = "CREATE TABLE words (id bigint, word text);"


@dataclass
class Case:
    """One sink: how it is named, read, and stopped in its commit."""

    sink: str
    options: dict[str, str]
    ids: Callable[[], list[int]]
    # A context in which a commit waits, and what tells that it does.
    hold: Callable[[], Any]
    waits: Callable[[], Any]


def someone_waits(path: Path) -> bool:
    """Return whether a process waits for a lock on this file."""
    inode = str(path.stat().st_ino)
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{inode} " in line for line in lines)


def files_case(folder: Path) -> Case:
    out = folder / "out"
    lock = out / "_clonos" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()

    @contextmanager
    def hold() -> Iterator[None]:
        with lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def ids() -> list[int]:
        tables = [pq.read_table(path, partitioning=None) for path in out.glob("epoch=*/*.parquet")]
        return sorted(n for table in tables for n in table.column("id").to_pylist())

    return Case("clonos-files", {"path": str(out)}, ids, hold, lambda: someone_waits(lock))


def sqlite_case(folder: Path) -> Case:
    path = folder / "results.db"
    with closing(sqlite3.connect(path)) as base:
        base.executescript(f"PRAGMA journal_mode = WAL; {TABLE}")

    @contextmanager
    def hold() -> Iterator[None]:
        with closing(sqlite3.connect(path, isolation_level=None)) as base:
            base.execute("BEGIN IMMEDIATE")
            yield

    def ids() -> list[int]:
        with closing(sqlite3.connect(path)) as base:
            return [row[0] for row in base.execute("SELECT id FROM words ORDER BY id")]

    def waits() -> bool:
        # A commit that waits for the write lock has the database open.
        return len(openers(path)) > 1

    return Case("clonos-sqlite", {"path": str(path), "table": "words"}, ids, hold, waits)


def openers(path: Path) -> set[int]:
    """Return the processes that have a file open."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == path:
                found.add(int(link.parts[2]))
        except OSError:
            continue
    return found


def postgresql_case(server: Postgres) -> Case:
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

    def ask(statement: str) -> list[Any]:
        with psycopg.connect(server.url) as link:
            return link.execute(statement).fetchall()

    with psycopg.connect(server.url) as link:
        link.execute(TABLE)

    @contextmanager
    def hold() -> Iterator[None]:
        with psycopg.connect(server.url) as link:
            # Rows cannot be inserted, so the fence has moved in a transaction that hangs.
            link.execute("LOCK TABLE words IN SHARE MODE")
            yield

    return Case(
        "clonos-postgresql",
        {"url": server.url, "table": "words"},
        lambda: [row[0] for row in ask("SELECT id FROM words ORDER BY id")],
        hold,
        lambda: ask("SELECT 1 FROM pg_locks WHERE NOT granted"),
    )


@pytest.fixture(params=["files", "sqlite", "postgresql", "postgresql at most once"])
def case(request: Any, tmp_path: Path) -> Iterator[Case]:
    if not request.param.startswith("postgresql"):
        yield {"files": files_case, "sqlite": sqlite_case}[request.param](tmp_path)
        return
    server = Postgres()
    made = postgresql_case(server)
    if request.param.endswith("at most once"):
        made.options["guarantee"] = "at_most_once"
    yield made
    server.close()


def test_a_driver_killed_in_the_middle_of_a_commit(spark: Any, case: Case, tmp_path: Path) -> None:
    first = scene.feed(tmp_path, 0)
    with scene.driver(tmp_path, case.sink, case.options) as driver, case.hold():
        scene.wait_until(case.waits, "the commit of the first epoch")
        driver.kill()
    assert case.ids() == []
    assert scene.offsets(tmp_path) == {0}
    assert scene.commits(tmp_path) == set()
    second = scene.feed(tmp_path, 1)
    # Another driver: this process has a JVM of its own.
    scene.run(spark, case.sink, case.options, tmp_path)
    lost = first if case.options.get("guarantee") == "at_most_once" else []
    assert case.ids() == [n for n in first + second if n not in lost]


def test_two_drivers_on_one_checkpoint(tmp_path: Path) -> None:
    """Each has its copy of the checkpoint, so that Spark itself sees no rival."""
    case = sqlite_case(tmp_path)
    rows = [n for epoch in range(3) for n in scene.feed(tmp_path, epoch)]
    for name in ("one", "two"):
        metadata = tmp_path / name / "metadata"
        metadata.parent.mkdir()
        metadata.write_text(json.dumps({"id": "6f9f6de4-6a4b-4a77-9e3c-6a8ad8a2d4c1"}))
    with scene.driver(tmp_path, case.sink, case.options, "one") as one:
        with scene.driver(tmp_path, case.sink, case.options, "two") as two:
            codes = sorted([one.wait(120), two.wait(120)])
            said = one.said() + two.said()
    assert case.ids() == rows
    assert codes == [0, 1]
    assert "EPOCH_FENCED" in said
    assert "Two drivers run on one checkpointLocation" in said
