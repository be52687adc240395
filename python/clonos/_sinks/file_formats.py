"""One file of rows, written batch by batch and synced."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from clonos._sinks.columns import json_lines
from clonos._sinks.writers import Batches
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# What each format can be compressed with; the first is the default.
COMPRESSIONS = {
    "parquet": ("snappy", "zstd", "lz4", "gzip", "none"),
    "jsonl": ("none", "gzip"),
}
_GZIP_LEVEL = 6
# Types of which files keep the parts alone.
_OTHERS = {"variant", "geometry", "geography"}


def suffix_of(file_format: str, compression: str) -> str:
    """Return the end of a file's name; readers of JSON go by it."""
    if file_format == "jsonl":
        return ".json.gz" if compression == "gzip" else ".json"
    return ".parquet"


def check_columns(schema: StructType, partition: str) -> None:
    """Refuse columns that nobody could read again as they are.

    Parameters
    ----------
    schema : StructType
        Of what is written.
    partition : str
        Name of the column that readers get from the names of folders.

    Raises
    ------
    ConfigError
        Names the column, and what to do with it.
    """
    names = [name.lower() for name in schema.names]
    for name, lower in zip(schema.names, names, strict=True):
        if lower == partition:
            reason = f"readers find the epoch's name under {partition!r}, in its place"
        elif names.count(lower) > 1:
            reason = "there are two of that name, whatever their case, which Spark does not read"
        else:
            continue
        message = f"clonos-files cannot write the column {name!r}: {reason}; rename it"
        raise ConfigError(message, "CONFIG")
    for field in schema.fields:
        kind = next(filter(_comes_back_as_another, _types_in(field.dataType)), None)
        if kind is not None:
            message = (
                f"clonos-files cannot write the column {field.name!r}: it has a "
                f"{kind.simpleString()}, which would be read as something else; cast it"
            )
            raise ConfigError(message, "CONFIG")


def _types_in(kind: DataType) -> Iterator[DataType]:
    yield kind
    for part in ("elementType", "keyType", "valueType"):
        if (within := getattr(kind, part, None)) is not None:
            yield from _types_in(within)
    for field in getattr(kind, "fields", ()):
        yield from _types_in(field.dataType)


def _comes_back_as_another(kind: DataType) -> bool:
    return kind.typeName() in _OTHERS or kind.simpleString().startswith("interval")


def write_file(
    path: Path, batches: Batches, file_format: str, compression: str, row_group: int
) -> int:
    """Write and sync one file; return its rows. Without rows there is no file.

    Parameters
    ----------
    path : Path
        The file, which must not exist.
    batches : iterator of RecordBatch
        Rows.
    file_format, compression : str
        See `COMPRESSIONS`.
    row_group : int
        Bytes in Arrow's memory of one row group of Parquet: so much is held at a time.
    """
    rows = 0
    with contextlib.ExitStack() as stack:
        write: _Parquet | _Lines | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if write is None:
                file = stack.enter_context(path.open("xb"))
                stack.callback(os.fsync, file.fileno())
                stack.callback(file.flush)
                kind: type[_Parquet | _Lines] = _Parquet if file_format == "parquet" else _Lines
                write = kind(file, batch.schema, compression, row_group)
                stack.enter_context(write)
            write.add(batch)
            rows += batch.num_rows
    return rows


class _Parquet:
    """A Parquet file whose row groups are gathered from batches."""

    def __init__(self, file: Any, schema: pa.Schema, compression: str, row_group: int) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression=compression)
        self._row_group = row_group
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def add(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self._row_group:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._held, self._bytes = [], 0


class _Lines:
    """A file of JSON lines."""

    def __init__(self, file: Any, _schema: pa.Schema, compression: str, _row_group: int) -> None:
        zipped = compression == "gzip"
        self._file = (
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_GZIP_LEVEL, mtime=0)
            if zipped
            else file
        )
        self._zipped = zipped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._zipped:
            self._file.close()

    def add(self, batch: pa.RecordBatch) -> None:
        self._file.write(json_lines(batch))
