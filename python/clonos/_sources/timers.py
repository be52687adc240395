"""``clonos-timers``: has Spark begin a batch when a timer of a stateful operator is due.

It has no rows. Spark asks it for its latest offset before each batch, in a process on the driver's
host; the driver's agent knows when the first timer of the operator is due, and the offset moves if
that time has come.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from clonos import _core
from clonos._sources.timer_offsets import (
    DueTimer,
    Offset,
    Pauses,
    first_offset,
    has_timers,
    next_offset,
    reader_of,
)
from clonos._temporary import SESSION_FILE
from clonos.errors import ClonosError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

    # Before Spark 4.2 no source learns where a batch starts.
    HAS_STARTS = True
except ImportError:  # pragma: no cover
    from clonos._sources.before_spark_42 import (  # type: ignore[assignment]
        ReadLimit,
        SupportsTriggerAvailableNow,
    )

    HAS_STARTS = False

NAME = "clonos-timers"
OPERATOR, BY_WATERMARK = "operator", "byWatermark"


class TimersSource(DataSource):
    """A source of batches, without rows."""

    #: File with the configuration of the session; of Clonos's own, so no option.
    session: ClassVar[str] = ""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def schema(self) -> str:
        """Return the columns; there never is a row."""
        return "due long"

    def streamReader(self, schema: StructType) -> TimersReader:  # noqa: ARG002  # Spark's signature
        """Return what moves when a timer is due."""
        operator, by_watermark = self.options[OPERATOR], self.options[BY_WATERMARK] == "true"
        return TimersReader(self.session, operator, by_watermark=by_watermark)


def timers_of(config: _core.SessionConfig) -> type[TimersSource]:
    """Return the source for a session.

    It is a new class, so that it travels to Spark's planner by value.
    """
    session = str(Path(config.driver_socket).with_name(SESSION_FILE))
    return type(TimersSource.__name__, (TimersSource,), {"session": session})


def read_timers(spark: SparkSession, operator: str, *, by_watermark: bool) -> DataFrame:
    """Return the stream that has a batch whenever a timer of `operator` is due."""
    reader = spark.readStream.format(NAME).option(OPERATOR, operator)
    return reader.option(BY_WATERMARK, by_watermark).load()


class TimersReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Offsets of one query's source."""

    def __init__(self, session: str, operator: str, *, by_watermark: bool) -> None:
        self._session = session
        self._operator = operator
        self._by_watermark = by_watermark
        self._first = first_offset(uuid.uuid4().hex)
        self._pauses = Pauses()
        self._until: int | None = None
        self._client: _core.Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors find no rows in it.
        return {}

    def initialOffset(self) -> Offset:
        """Return where a new query begins. Spark asks more than once."""
        return self._first

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: ARG002  # Spark's signature
        """Return where the next batch ends; `start`, unless a timer is due."""
        timer = self._due(reader_of(start))
        return next_offset(start, timer, self._pauses, time.monotonic())

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the time: timers that are due later are not waited for."""
        self._until = time.time_ns() // 1_000_000

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Have one task, without rows, tell the operator of a batch for timers."""
        return [InputPartition(0)] if has_timers(start, end) else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # Spark's signature
        """Read no rows."""
        return iter(())

    def stop(self) -> None:
        """Let the agent go."""
        self._client = None

    def _due(self, reader: str) -> DueTimer | None:
        asked = (reader, self._operator, self._by_watermark, self._until)
        try:
            found = self._connected().timer_due(*asked)
        except (ClonosError, OSError):
            if Path(self._session).exists():
                raise
            # The session was stopped: what has state fails in its next batch, and says so.
            return None
        return None if found is None else DueTimer(*found)

    def _connected(self) -> _core.Client:
        if self._client is None or not self._client.is_usable():
            config = _core.SessionConfig.from_bytes(Path(self._session).read_bytes())
            self._client = _core.Client.connect(config, config.driver_socket)
        return self._client


__all__ = ["HAS_STARTS", "TimersReader", "TimersSource", "read_timers", "timers_of"]
