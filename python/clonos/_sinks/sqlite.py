"""``clonos-sqlite``: each epoch is one transaction of a SQLite database on the driver's host.

The rows travel in the messages of the tasks; the commit inserts them and moves the fence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from clonos._sinks import columns
from clonos._sinks.fence import Claim, Driver, Fence, may_write
from clonos._sinks.messages import Staged, pack, unpack
from clonos._sinks.options import Guarantee, Options
from clonos._sinks.place import Place
from clonos._sinks.sql import check_key, insert_statement, quoted
from clonos._sinks.writers import Batches, Sink, Target

_LEDGER = """
CREATE TABLE IF NOT EXISTS _clonos_fence (
    query TEXT PRIMARY KEY, epoch INTEGER NOT NULL, driver TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS _clonos_claims (
    query TEXT, driver TEXT, first_epoch INTEGER NOT NULL, PRIMARY KEY (query, driver)
) WITHOUT ROWID;
"""
_TYPES = {
    "boolean": "INTEGER",
    "tinyint": "INTEGER",
    "smallint": "INTEGER",
    "int": "INTEGER",
    "bigint": "INTEGER",
    "float": "REAL",
    "double": "REAL",
    "binary": "BLOB",
}


class SqliteTarget(Target):
    """A table of a SQLite database."""

    known = ("path", "table", "key", "busySeconds", "maxTaskBytes")
    replaces = True

    def __init__(self, options: Options, schema: Any) -> None:
        super().__init__(options, schema)
        self.path = Path(options.local_path()).absolute()
        self.table = options.text("table")
        self.key = check_key(options.names("key"), schema)
        self.busy = options.seconds("busySeconds", 60)
        self.limit = options.size("maxTaskBytes", "256MiB")

    @property
    def name(self) -> str:
        """The database and the table."""
        return f"{self.path}:{self.table}"

    def stage(self, where: Place, batches: Batches) -> Staged:
        """Pack the rows into the message."""
        rows, packed = pack(batches, self.limit)
        return Staged(where.query, rows, packed)

    def commit(self, staged: list[Staged], claim: Claim) -> None:
        """Insert the rows and move the fence, in one transaction."""
        with self._open() as base:
            if self.guarantee is Guarantee.AT_LEAST_ONCE or not claim.fenced:
                with _transaction(base):
                    self._insert(base, staged)
                return
            with _transaction(base):
                write = _advance(base, claim)
                if write and self.guarantee is Guarantee.EXACTLY_ONCE:
                    self._insert(base, staged)
            if write and self.guarantee is Guarantee.AT_MOST_ONCE:
                with _transaction(base):
                    self._insert(base, staged)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        base = sqlite3.connect(self.path, timeout=self.busy, isolation_level=None)
        try:
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = FULL")
            base.executescript(_LEDGER)
            yield base
        finally:
            base.close()

    def _insert(self, base: sqlite3.Connection, staged: list[Staged]) -> None:
        names = self.schema.fieldNames()
        fields = [f"{quoted(f.name)} {_type_of(f.dataType.simpleString())}" for f in self.schema]
        if self.key:
            fields.append(f"PRIMARY KEY ({', '.join(map(quoted, self.key))})")
        table = quoted(self.table)
        base.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(fields)})")
        if self.replace:
            base.execute(f"DELETE FROM {table}")  # noqa: S608 - quoted
        marks = ", ".join("?" * len(names))
        statement = insert_statement(table, names, f"VALUES ({marks})", self.key)
        for message in staged:
            for batch in unpack(message.payload):
                values = [_values(column) for column in batch.columns]
                base.executemany(statement, zip(*values, strict=True))


@contextmanager
def _transaction(base: sqlite3.Connection) -> Iterator[None]:
    # Takes the write lock at once, so that what is read about the fence stays true.
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        base.execute("ROLLBACK")
        raise
    base.execute("COMMIT")


def _advance(base: sqlite3.Connection, claim: Claim) -> bool:
    """Move the fence of a query to this epoch; return whether the epoch is to be written."""
    row = base.execute(
        "SELECT epoch, driver FROM _clonos_fence WHERE query = ?", (claim.query,)
    ).fetchone()
    me = claim.driver.to_text()
    first = base.execute(
        "SELECT first_epoch FROM _clonos_claims WHERE query = ? AND driver = ?", (claim.query, me)
    ).fetchone()
    fence = Fence(row[0], Driver.from_text(row[1])) if row else None
    write = may_write(fence, first and first[0], claim)
    if first is None:
        claims = (claim.query, me, claim.epoch)
        base.execute("INSERT INTO _clonos_claims VALUES (?, ?, ?)", claims)
    if write:
        values = (claim.query, claim.epoch, me)
        base.execute("INSERT OR REPLACE INTO _clonos_fence VALUES (?, ?, ?)", values)
    return write


def _type_of(spark_type: str) -> str:
    return _TYPES.get(spark_type, "TEXT")


def _values(column: pa.Array) -> list[Any]:
    """Return a column as values that SQLite stores."""
    kind = column.type
    if columns.is_nested(kind):
        column = columns.nested_json(column)
    elif pa.types.is_timestamp(kind):
        column = columns.iso_text(column)
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        column = columns.text(column)
    return columns.python_values(column)


class SqliteSink(Sink):
    """A table in SQLite, one transaction per epoch."""

    sink = "clonos-sqlite"
    target = SqliteTarget
