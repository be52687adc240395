"""What the two flavours of processors have in common: chunks of rows in, batches of Arrow out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from clonos._worker.task_conf import TaskConf

MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS = 10_000
# Rows of output, of however many keys, that become Arrow together.
OUTPUT_ROWS = 8192


class Flavour(Protocol):
    """Turns Arrow into what a processor is given, and what it returns into Arrow."""

    def keys(self, keys: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return the keys as a processor is given them with their rows."""

    def chunks(self, rows: pa.RecordBatch) -> Chunks:
        """Return what makes chunks of these rows."""

    def take(self, outputs: Iterable[Any]) -> bool:
        """Take all that a processor returns for one key; whether it is time to hand it on."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Hand on what was taken."""


class Chunks(Protocol):
    """Chunks of rows that are sorted by key."""

    def iterator(self, begin: int, end: int) -> Iterator[Any]:
        """The rows from `begin` to `end`, as a processor iterates over them."""


def rows_per_chunk(rows: pa.RecordBatch) -> int:
    """How many rows PySpark would hand over at a time."""
    records = _setting(MAX_RECORDS, _RECORDS)
    most = records if records > 0 else 2**31 - 1
    size = _setting(MAX_BYTES, 2**31 - 1)
    if len(rows) and 0 < size < 2**31 - 1:
        most = min(most, max(1, int(size / max(1.0, rows.nbytes / len(rows)))))
    return most


def _setting(name: str, otherwise: int) -> int:
    from pyspark import TaskContext

    from clonos._config import parse_size

    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(name)
    if not text:
        return otherwise
    try:
        return int(text)
    except ValueError:
        return parse_size(name, text)


def in_zone(column: pa.Array, conf: TaskConf) -> pa.Array:
    """Give instants the zone of the session, as Spark writes them for its own operator."""
    kind = zoned(column.type, conf.timezone)
    return column if kind == column.type else column.cast(kind)


def zoned(kind: pa.DataType, zone: str) -> pa.DataType:
    """Return `kind` with instants of `zone`."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, zone)
    if pa.types.is_list(kind):
        return pa.list_(_zoned_field(kind.value_field, zone))
    if pa.types.is_map(kind):
        return pa.map_(_zoned_field(kind.key_field, zone), _zoned_field(kind.item_field, zone))
    if pa.types.is_struct(kind):
        return pa.struct([_zoned_field(field, zone) for field in kind])
    return kind


def _zoned_field(field: pa.Field, zone: str) -> pa.Field:
    return field.with_type(zoned(field.type, zone))
