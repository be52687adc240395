"""``clonos-first-batch``: one row in the first batch of a query, and none ever after.

What a query reads in its first batch alone stands behind this row: Spark's log has the offset, so
a first batch that runs again has the row again, and a query that is started again has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

try:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
except ImportError:  # pragma: no cover
    from clonos._sources.before_spark_42 import (  # type: ignore[assignment]
        ReadLimit,
        SupportsTriggerAvailableNow,
    )

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME = "clonos-first-batch"
COLUMN = "_clonos_first"
Offset = dict[str, int]


class FirstBatchSource(DataSource):
    """A source of one row."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def schema(self) -> str:
        """Return the one column."""
        return f"{COLUMN} boolean"

    def streamReader(self, schema: StructType) -> FirstBatchReader:  # noqa: ARG002  # Spark's signature
        """Return what moves once."""
        return FirstBatchReader()


def read_first_batch(spark: SparkSession) -> DataFrame:
    """Return the stream that has a row in its first batch."""
    return spark.readStream.format(NAME).load()


class FirstBatchReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """An offset is the number of batches that had the row."""

    def initialOffset(self) -> Offset:
        """Return where a new query begins."""
        return {"batches": 0}

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:  # noqa: ARG002  # Spark's signature; 4.1 gives none
        """Return where every batch ends."""
        return {"batches": 1}

    def prepareForTriggerAvailableNow(self) -> None:
        """There is nothing that could grow."""

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Have one task read the row."""
        return [InputPartition(0)] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # Spark's signature
        """Read the row."""
        yield pa.RecordBatch.from_arrays([pa.array([True])], names=[COLUMN])


__all__ = ["COLUMN", "FirstBatchReader", "FirstBatchSource", "read_first_batch"]
