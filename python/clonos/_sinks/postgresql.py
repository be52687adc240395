"""``clonos-postgresql``: each epoch is one transaction of a PostgreSQL database.

Few rows travel in the messages of the tasks. Many are copied by the tasks into staging tables, and
the commit moves them with one ``INSERT ... SELECT``; the fence moves in the same transaction.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import re
import uuid
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from clonos._sinks import columns
from clonos._sinks.fence import Claim, Driver, Fence, may_write
from clonos._sinks.messages import Packer, Staged, unpack
from clonos._sinks.options import Guarantee, Options
from clonos._sinks.place import Place
from clonos._sinks.postgresql_client import Client
from clonos._sinks.sql import check_key, insert_statement, quoted
from clonos._sinks.writers import Batches, Sink, Target

_TYPES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
# What one transaction of a task copies; it is held in memory to be sent again.
_CHUNK_BYTES = 16 << 20
_CSV = pa_csv.WriteOptions(include_header=False, quoting_style="needed")
_STAGED = re.compile(r"_clonos_s_[0-9a-f]{12}_(\d+)_[0-9a-f]{20}")
# Stale tables may be held by a task that nobody waits for; the next commit tries again.
_DROP_PATIENCE = "200ms"


class PostgresqlTarget(Target):
    """A table of a PostgreSQL database."""

    known = ("url", "table", "key", "retrySeconds", "stageAbove", "staging")
    replaces = True

    def __init__(self, options: Options, schema: Any) -> None:
        super().__init__(options, schema)
        self.url = options.text("url")
        self.table = options.text("table")
        self.key = check_key(options.names("key"), schema)
        self.retry = options.seconds("retrySeconds", 60)
        self.stage_above = options.size("stageAbove", "4MiB")
        self.logged = options.choice("staging", ("logged", "unlogged")) == "logged"
        self.names = schema.fieldNames()

    @property
    def name(self) -> str:
        """The table; the URL may hold a password."""
        return self.table

    def _client(self) -> Client:
        return Client(self.url, self.retry)

    def _in_schema(self, table: str) -> str:
        """Return a table of ours, in the schema of the target."""
        schema, dot, _ = self.table.rpartition(".")
        return (f"{quoted(schema)}." if dot else "") + quoted(table)

    @property
    def _target(self) -> str:
        return self._in_schema(self.table.rpartition(".")[2])

    def stage(self, where: Place, batches: Batches) -> Staged:
        """Pack the rows into the message, or copy them into staging tables if they are many."""
        packer, seen = Packer(self.stage_above), []
        for batch in batches:
            seen.append(batch)
            if not packer.add(batch):
                rest = itertools.chain(seen, batches)
                return self._stage_tables(where, rest)
        return Staged(where.query, packer.rows, packer.finish())

    def _stage_tables(self, where: Place, batches: Iterable[pa.RecordBatch]) -> Staged:
        client, tables, rows = self._client(), {}, 0
        client.transact(self._ensure_tables)
        for chunk, count in _chunks(batches):

            def copy(connection: Any, chunk: bytes = chunk) -> str:
                # A name for each try: one whose commit was not answered may be there, too.
                epoch = where.label if where.label.isdecimal() else "0"
                name = f"_clonos_s_{_short(where.query)}_{epoch}_{uuid.uuid4().hex[:20]}"
                table = self._in_schema(name)
                kind = "TABLE" if self.logged else "UNLOGGED TABLE"
                connection.execute(
                    f"CREATE {kind} {table} AS SELECT {self._columns} FROM {self._target} "  # noqa: S608
                    "WITH NO DATA"
                )
                self._copy(connection, table, [chunk])
                return table

            tables[client.transact(copy)] = count
            rows += count
        return Staged(where.query, rows, tables)

    def write_now(self, where: Place, batches: Batches) -> Staged:
        """Copy a task's rows into the table at once."""
        client, rows = self._client(), 0
        client.transact(self._ensure_tables)
        for chunk, count in _chunks(batches):
            client.transact(functools.partial(self._add, chunks=[chunk]))
            rows += count
        return Staged(where.query, rows, None)

    def commit(self, staged: list[Staged], claim: Claim) -> None:
        """Insert the rows and move the fence, in one transaction."""
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            return
        client = self._client()
        client.transact(self._ensure_tables)
        if not claim.fenced:
            # Without a fence, a commit that was not answered must not be tried again.
            client.transact(lambda connection: self._publish(connection, staged), again=False)
        elif self.guarantee is Guarantee.EXACTLY_ONCE:

            def fence_and_data(connection: Any) -> None:
                if self._advance(connection, claim):
                    self._publish(connection, staged)

            client.transact(fence_and_data)
        elif client.transact(lambda connection: self._advance(connection, claim)):
            client.transact(lambda connection: self._publish(connection, staged), again=False)
        self._forget(client, claim)

    def _publish(self, connection: Any, staged: list[Staged]) -> None:
        if self.replace:
            connection.execute(f"DELETE FROM {self._target}")  # noqa: S608 - quoted
        packed = [message.payload for message in staged if isinstance(message.payload, bytes)]
        if packed:
            self._add(connection, (_csv(batch) for part in packed for batch in unpack(part)))
        for message in staged:
            if isinstance(message.payload, dict):
                for table, rows in message.payload.items():
                    found = self._insert_from(connection, table)
                    if self.key:
                        # Rows that were there already may not be among those inserted.
                        count = f"SELECT count(*) FROM {table}"  # noqa: S608 - quoted
                        (found,) = connection.execute(count).fetchone()
                    if found != rows:
                        raise _staging_lost(table, rows, found)
                    connection.execute(f"DROP TABLE {table}")

    def _add(self, connection: Any, chunks: Iterable[bytes]) -> None:
        """Copy rows into the table; with a key, through a table of this transaction."""
        if not self.key:
            self._copy(connection, self._target, chunks)
            return
        connection.execute(
            f"CREATE TEMP TABLE _clonos_new ON COMMIT DROP AS SELECT {self._columns} "  # noqa: S608
            f"FROM {self._target} WITH NO DATA"
        )
        self._copy(connection, "_clonos_new", chunks)
        self._insert_from(connection, "_clonos_new")

    def _copy(self, connection: Any, table: str, chunks: Iterable[bytes]) -> None:
        statement = f"COPY {table} ({self._columns}) FROM STDIN (FORMAT csv)"
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for chunk in chunks:
                copy.write(chunk)

    def _insert_from(self, connection: Any, table: str) -> int:
        source = f"SELECT {self._columns} FROM {table}"  # noqa: S608 - quoted
        statement = insert_statement(self._target, self.names, source, self.key)
        return int(connection.execute(statement).rowcount)

    @property
    def _columns(self) -> str:
        return ", ".join(map(quoted, self.names))

    def _ensure_tables(self, connection: Any) -> None:
        """Create what is missing: the table, the fences, the claims."""
        fence, claims = (self._in_schema(n) for n in ("_clonos_fence", "_clonos_claims"))
        fields = [f"{quoted(f.name)} {_type_of(f.dataType.simpleString())}" for f in self.schema]
        if self.key:
            fields.append(f"PRIMARY KEY ({', '.join(map(quoted, self.key))})")
        wanted = {
            self._target: ", ".join(fields),
            fence: "query text PRIMARY KEY, epoch bigint NOT NULL, driver text NOT NULL",
            claims: "query text, driver text, first_epoch bigint NOT NULL, "
            "PRIMARY KEY (query, driver)",
        }
        missing = "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL"
        if connection.execute(missing, (list(wanted),)).fetchall():
            # IF NOT EXISTS alone fails where two create the same table at once.
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_lock_of("clonos tables"),))
            for name, columns_of in wanted.items():
                connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns_of})")

    def _advance(self, connection: Any, claim: Claim) -> bool:
        """Move the fence of a query to this epoch; return whether the epoch is to be written."""
        fence_table, claims = (self._in_schema(n) for n in ("_clonos_fence", "_clonos_claims"))
        me = claim.driver.to_text()
        # The fence's row is not there the first time, so it cannot be what is locked.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_lock_of(claim.query),))
        row = connection.execute(
            f"SELECT epoch, driver FROM {fence_table} WHERE query = %s FOR UPDATE",  # noqa: S608
            (claim.query,),
        ).fetchone()
        first = connection.execute(
            f"SELECT first_epoch FROM {claims} WHERE query = %s AND driver = %s",  # noqa: S608
            (claim.query, me),
        ).fetchone()
        fence = Fence(row[0], Driver.from_text(row[1])) if row else None
        write = may_write(fence, first and first[0], claim)
        if first is None:
            values = (claim.query, me, claim.epoch)
            connection.execute(f"INSERT INTO {claims} VALUES (%s, %s, %s)", values)  # noqa: S608
        if write:
            statement = insert_statement(
                fence_table, ["query", "epoch", "driver"], "VALUES (%s, %s, %s)", ["query"]
            )
            connection.execute(statement, (claim.query, claim.epoch, me))
        return write

    def _forget(self, client: Client, claim: Claim) -> None:
        """Drop the staging tables of this epoch and those before that are still there."""

        def drop(connection: Any) -> None:
            names = connection.execute(
                "SELECT relname FROM pg_class WHERE relname LIKE %s AND relkind = 'r' AND "
                "relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(%s))",
                (f"\\_clonos\\_s\\_{_short(claim.query)}\\_%", self._target),
            ).fetchall()
            connection.execute(f"SET LOCAL lock_timeout = '{_DROP_PATIENCE}'")
            for (name,) in names:
                found = _STAGED.fullmatch(name)
                if found and int(found[1]) <= claim.epoch:
                    connection.execute(f"DROP TABLE IF EXISTS {self._in_schema(name)}")

        client.try_once(drop)

    def abort(self, staged: list[Staged]) -> None:
        """Drop the staging tables that the messages name."""
        tables = [t for m in staged if isinstance(m.payload, dict) for t in m.payload]
        if tables:
            drop = f"DROP TABLE IF EXISTS {', '.join(tables)}"
            self._client().try_once(lambda connection: connection.execute(drop))


def _staging_lost(table: str, rows: int, found: int) -> Exception:
    from clonos.errors import ClonosError

    message = (
        f"staging table {table} holds {found} rows of the {rows} that its task wrote: the server "
        "crashed since, which empties unlogged tables. Nothing of the epoch was written; start the "
        "query again. With option staging='logged', the default, such a crash only delays it"
    )
    return ClonosError(message, "STAGING_LOST")


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterable[tuple[bytes, int]]:
    """Gather batches into pieces that are sent, and sent again, as one; with their rows."""
    held, size, rows = [], 0, 0
    for batch in batches:
        if batch.num_rows:
            held.append(_csv(batch))
            size += len(held[-1])
            rows += batch.num_rows
        if size >= _CHUNK_BYTES:
            yield b"".join(held), rows
            held, size, rows = [], 0, 0
    if held:
        yield b"".join(held), rows


def _csv(batch: pa.RecordBatch) -> bytes:
    """Return a batch as CSV in which nulls are bare and texts are quoted."""
    arrays = [_csv_column(column) for column in batch.columns]
    sink = io.BytesIO()
    table = pa.RecordBatch.from_arrays(arrays, names=[str(n) for n in range(len(arrays))])
    pa_csv.write_csv(table, sink, _CSV)
    return sink.getvalue()


def _csv_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if columns.is_nested(kind):
        return columns.nested_json(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([v if v is None else f"\\x{v.hex()}" for v in column.to_pylist()])
    if pa.types.is_timestamp(kind):
        return columns.iso_text(column)
    if pa.types.is_decimal(kind) or pa.types.is_null(kind) or pa.types.is_duration(kind):
        return columns.text(column)
    return column


def _type_of(spark_type: str) -> str:
    if spark_type.startswith("decimal"):
        return spark_type.replace("decimal", "numeric")
    nested = spark_type.startswith(("array", "map", "struct"))
    return "jsonb" if nested else _TYPES.get(spark_type, "text")


def _short(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()[:12]


def _lock_of(name: str) -> int:
    """Return the number of the advisory lock for `name`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


class PostgresqlSink(Sink):
    """A table in PostgreSQL, one transaction per epoch."""

    sink = "clonos-postgresql"
    target = PostgresqlTarget
