"""Files of rows: a stream of Arrow batches whose bytes are summed as they are written."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clonos._loops.folder import Part, damaged

if TYPE_CHECKING:
    pass


class _Summed(io.RawIOBase):
    """A file that knows how many bytes were written to it, and their CRC-32."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("xb")
        self.size = 0
        self.crc = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.crc = zlib.crc32(data, self.crc)
        written = self._file.write(data)
        self.size += written
        return written

    def close(self) -> None:
        if not self.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        super().close()


def write_rows(path: Path, batches: Iterator[pa.RecordBatch]) -> Part | None:
    """Write and sync a file; ``None``, and no file, if there are no rows."""
    file: _Summed | None = None
    writer: Any = None
    rows = 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if file is None:
                file = _Summed(path)
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                writer = pa.ipc.new_stream(file, batch.schema, options=options)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            writer.close()
    finally:
        if file is not None:
            file.close()
    return None if file is None else Part(path.name, rows, file.size, file.crc)


def read_rows(path: Path, part: Part) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file.

    Raises
    ------
    CorruptLog
        If it is missing, or not what was written.
    """
    try:
        source = pa.memory_map(str(path))
    except FileNotFoundError as error:
        raise damaged(path, "it is missing") from error
    with source:
        whole = source.read_buffer()
        if whole.size != part.size:
            raise damaged(path, f"it has {whole.size} bytes, and {part.size} were written")
        if zlib.crc32(whole) != part.crc:
            raise damaged(path, "its bytes are not those that were written")
        with pa.ipc.open_stream(whole) as reader:
            yield from reader


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch as Spark takes it: it was written in the time zone of a session."""
    return batch if batch.schema.equals(schema) else batch.cast(schema)


__all__ = ["conformed", "read_rows", "write_rows"]
