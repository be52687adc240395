"""``clonos-delta``: each epoch is one commit of a Delta table.

The rows travel in the messages of the tasks. The commit that adds them records an application
transaction (query, epoch), as Spark's own Delta sink does, so the table itself says what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from clonos._sinks.fence import Claim, Driver, Fence, fenced, may_write
from clonos._sinks.messages import Staged, pack, unpack
from clonos._sinks.options import Guarantee, Options
from clonos._sinks.place import Place
from clonos._sinks.writers import Batches, Sink, Target
from clonos.errors import ConfigError

_DRIVER_KEY = "clonosDriver"
_HISTORY = 50


def deltalake() -> Any:
    """Return the client library.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import deltalake as module
    except ImportError as error:
        message = "clonos-delta needs deltalake on the driver: pip install clonos[delta]"
        raise ConfigError(message, "CONFIG") from error
    return module


class DeltaTarget(Target):
    """A Delta table."""

    known = ("path", "partitionBy", "storage.", "maxTaskBytes")
    replaces = True

    def __init__(self, options: Options, schema: Any) -> None:
        super().__init__(options, schema)
        self.path = options.text("path")
        self.partition_by = options.names("partitionBy")
        self.storage = options.prefixed("storage.")
        self.limit = options.size("maxTaskBytes", "256MiB")

    @property
    def name(self) -> str:
        """The table's path."""
        return self.path

    def stage(self, where: Place, batches: Batches) -> Staged:
        """Pack the rows into the message."""
        rows, packed = pack(batches, self.limit)
        return Staged(where.query, rows, packed)

    def commit(self, staged: list[Staged], claim: Claim) -> None:
        """Add the rows and the application transaction, in one commit."""
        lake = deltalake()
        if self.guarantee is Guarantee.AT_LEAST_ONCE or not claim.fenced:
            self._write(staged, None, None)
            return
        table = self._table()
        me = claim.driver.to_text()
        first = table and table.transaction_version(_claim_id(claim))
        if not may_write(self._fence(table, claim), first, claim):
            if first is None:
                self._record(table, self._properties(claim, [(_claim_id(claim), claim.epoch)]))
            return
        marks = [(claim.query, claim.epoch)]
        if first is None:
            marks.append((_claim_id(claim), claim.epoch))
        properties = self._properties(claim, marks, {_DRIVER_KEY: me})
        try:
            if self.guarantee is Guarantee.AT_MOST_ONCE:
                self._record(table, properties)
                properties = None
            # On the version whose fence was read, so that Delta sees who came in between.
            self._write(staged, properties, table if properties else None)
        except lake.exceptions.CommitFailedError as error:
            # Another commit of this query came between reading the fence and moving it.
            now = self._fence(self._table(), claim)
            if now is not None and now.epoch >= claim.epoch:
                raise fenced(claim, now) from error
            raise

    def _table(self) -> Any:
        lake = deltalake()
        try:
            return lake.DeltaTable(self.path, storage_options=self.storage or None)
        except lake.exceptions.TableNotFoundError:
            return None

    def _fence(self, table: Any, claim: Claim) -> Fence | None:
        epoch = table and table.transaction_version(claim.query)
        if epoch is None:
            return None
        # Who wrote it stands in the history, which may have been cleaned.
        drivers = (entry.get(_DRIVER_KEY) for entry in table.history(_HISTORY))
        driver = next((name for name in drivers if name), "unknown")
        return Fence(epoch, Driver.from_text(driver))

    @staticmethod
    def _properties(
        claim: Claim, marks: list[tuple[str, int]], metadata: dict[str, str] | None = None
    ) -> Any:
        lake = deltalake()
        transactions = [lake.Transaction(app_id, version) for app_id, version in marks]
        return lake.CommitProperties(
            custom_metadata={"clonosQuery": claim.query, **(metadata or {})},
            app_transactions=transactions,
        )

    def _record(self, table: Any, properties: Any) -> None:
        """Make a commit that adds no rows."""
        if table is None:
            self._write([], properties, None)
            return
        table.create_write_transaction(
            [], mode="append", schema=table.schema(), commit_properties=properties
        )

    def _write(self, staged: list[Staged], properties: Any, table: Any) -> None:
        rows = _batches(staged)
        head = next(rows, None)
        if head is None:
            if properties is None and not self.replace and self._table() is not None:
                return
            from clonos._arrow_types import arrow_schema

            schema, batches = arrow_schema(self.schema), iter(())
        else:
            schema, batches = head.schema, _chain(head, rows)
        deltalake().write_deltalake(
            self.path if table is None else table,
            pa.RecordBatchReader.from_batches(schema, batches),
            mode="overwrite" if self.replace else "append",
            partition_by=self.partition_by or None,
            storage_options=(self.storage or None) if table is None else None,
            commit_properties=properties,
        )


def _claim_id(claim: Claim) -> str:
    return f"{claim.query}/{claim.driver.to_text()}"


def _batches(staged: list[Staged]) -> Iterator[pa.RecordBatch]:
    for message in staged:
        yield from unpack(message.payload)


def _chain(head: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield head
    yield from rest


class DeltaSink(Sink):
    """A Delta table, one commit per epoch."""

    sink = "clonos-delta"
    target = DeltaTarget
