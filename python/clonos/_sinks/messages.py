"""What a writing task hands to the commit, and Arrow batches as bytes in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from clonos.errors import ResourceExhausted


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task has staged.

    `payload` is the sink's own: bytes of Arrow batches, names of files or of a staging table; None
    if the task wrote nothing or has written it already.
    """

    query: str
    rows: int
    payload: Any


class Packer:
    """Arrow batches as compressed bytes, up to a limit.

    Parameters
    ----------
    limit : int
        Bytes that may be packed.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows = 0
        self._stream = pa.BufferOutputStream()
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch) -> bool:
        """Pack one more batch; return whether all of it is still within the limit."""
        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_stream(self._stream, batch.schema, options=options)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows
        return int(self._stream.tell()) <= self.limit

    def finish(self) -> bytes | None:
        """Return what was packed, None if there were no rows."""
        if self._writer is not None:
            self._writer.close()
        packed: bytes = self._stream.getvalue().to_pybytes()
        return packed if self.rows else None


def pack(batches: Iterable[pa.RecordBatch], limit: int) -> tuple[int, bytes | None]:
    """Return the number of rows and the bytes of all batches.

    Raises
    ------
    ResourceExhausted
        If they need more than `limit` bytes.
    """
    packer = Packer(limit)
    for batch in batches:
        if batch.num_rows and not packer.add(batch):
            message = (
                f"a task has more than {limit} bytes of (compressed) rows for this sink, whose "
                "rows travel through the driver. Use more partitions (df.repartition) or smaller "
                "epochs; or raise option maxTaskBytes, and spark.driver.maxResultSize and "
                "spark.driver.memory with it"
            )
            raise ResourceExhausted(message, "RESOURCE_EXHAUSTED")
    return packer.rows, packer.finish()


def unpack(packed: bytes | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches that were packed."""
    if packed is not None:
        with pa.ipc.open_stream(packed) as reader:
            yield from reader
