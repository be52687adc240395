"""Each sink as the tests of drivers need it: how it is named, read, and caught in its commit."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sink_scene as scene
from sink_servers import Kafka, Postgres

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
    columns: Sequence[str] = ("*",)
    # Whether a commit that is caught is held for certain, and cannot have come to its end.
    is_held: bool = True


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


def kafka_case(broker: Kafka) -> Case:
    topic = broker.new_topic()

    def sending() -> bool:
        return bool(broker.messages(topic, "read_uncommitted"))

    # Long messages, so that there is time between the first and the end of the transaction.
    return Case(
        "clonos-kafka",
        {"kafka.bootstrap.servers": broker.servers, "topic": topic},
        lambda: broker.ids(topic),
        nullcontext,
        sending,
        scene.keyed(padding=900_000),
        is_held=False,
    )


def delta_case(folder: Path) -> Case:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    table = folder / "table"

    def ids() -> list[int]:
        if not deltalake.DeltaTable.is_deltatable(str(table)):
            return []
        found = pa.table(deltalake.DeltaTable(str(table)).to_pyarrow_table())
        return sorted(found.column("id").to_pylist())

    # Writing takes milliseconds: mostly seen when the table has the epoch, and Spark has not.
    return Case("clonos-delta", {"path": str(table)}, ids, nullcontext, table.exists, is_held=False)
