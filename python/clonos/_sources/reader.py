"""What Spark reads a log through: offsets and ranges on the driver, rows on executors."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from clonos import _core
from clonos._sources.base import TIMESTAMP
from clonos._sources.receiver import Spec, find_or_start, secret_of
from clonos.errors import AgentError, CorruptLog

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from clonos._sources.base import ReplayableSource
    from clonos._sources.options import SourceOptions

try:
    # Admission control of Python sources came with Spark 4.2.
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # pragma: no cover
    from clonos._sources.before_spark_42 import (  # type: ignore[assignment]
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

Answer = TypeVar("Answer")

# How long a reader waits for a receiver that is being started again.
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.1
# How often the reader looks whether the receiver is alive, between Spark's questions.
LOOK_SECONDS = 0.5
# Fewer rows than this are not worth another task.
ROWS_PER_TASK = 20_000


class LogRange(InputPartition):
    """Rows of a log from one position up to another."""

    def __init__(
        self, addr: str, secret: bytes, start: int, end: int, options: SourceOptions
    ) -> None:
        super().__init__((start, end))
        self.addr = addr
        self.secret = secret
        self.start = start
        self.end = end
        self.timestamps = options.timestamps
        self.encrypt = options.encrypt

    def __repr__(self) -> str:
        return f"LogRange({self.addr}, {self.start}, {self.end})"


class LogReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Reader of a source's log; there is one at a time, which the receiver sees to."""

    def __init__(
        self, source: ReplayableSource, options: SourceOptions, schema: StructType
    ) -> None:
        self._spec = Spec(source, options, schema, reader=secrets.token_hex(8))
        self._lock = threading.RLock()
        self._client: _core.SourceClient | None = None
        self._addr = ""
        # Of the receiver at which this was the reader last.
        self._incarnation: int | None = None
        self._stopped = threading.Event()
        self._until: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors read ranges, which say all they need.
        return {"_spec": None}

    def initialOffset(self) -> dict[str, int]:
        """Return where a new query begins: at the first row that is there."""
        return {"position": self._bounds()[0]}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of option ``maxRecordsPerBatch``."""
        most = self._spec.options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """Return up to where the next batch goes: rows that are safe, within `limit`."""
        _, safe = self._bounds()
        if self._until is not None:
            safe = min(safe, self._until)
        if start is None:
            return {"position": safe}
        if start["position"] > safe and self._until is None:
            self._lost(start["position"], safe)
        if isinstance(limit, ReadMaxRows):
            safe = min(safe, start["position"] + limit.max_rows)
        return {"position": max(safe, start["position"])}

    def reportLatestOffset(self) -> dict[str, int]:
        """Return the last safe position, for the query's progress: it shows the backlog."""
        return {"position": self._bounds()[1]}

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: ``Trigger.AvailableNow`` ends with it."""
        self._until = self._bounds()[1]

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Split a batch into ranges of about equal length."""
        begin, finish = start["position"], end["position"]
        first, safe = self._bounds()
        if finish > safe:
            self._lost(finish, safe)
        if not self._spec.options.eager:
            # What was only in memory may be gone; the rest is read.
            begin = min(max(begin, first), finish)
        rows = finish - begin
        # What costs much for each row is spread by whoever asks for it.
        most = self._spec.options.partitions
        tasks = min(most or os.cpu_count() or 1, rows if most else -(-rows // ROWS_PER_TASK))
        secret = secret_of(Path(self._spec.options.folder))
        cuts = [begin + rows * number // tasks for number in range(tasks + 1)] if rows else []
        return [
            LogRange(self._addr, secret, low, high, self._spec.options)
            for low, high in itertools.pairwise(cuts)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a range: runs on an executor."""
        if not isinstance(partition, LogRange):
            raise TypeError(f"a LogRange is read, not {partition!r}")
        at, client = partition.start, None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while at < partition.end:
            try:
                if client is None:
                    client = _core.SourceClient.connect(
                        partition.addr, partition.secret, partition.encrypt
                    )
                parts, at = client.read(at, partition.end)
            except AgentError:
                # The receiver may be on its way up again.
                if time.monotonic() > deadline:
                    raise
                client = None
                time.sleep(PAUSE_SECONDS)
                continue
            for rows, received in parts:
                yield _with_time(rows, received, timestamps=partition.timestamps)

    def commit(self, end: dict[str, int]) -> None:
        """Drop what Spark has committed."""
        self._ask(lambda client: client.commit(end["position"]))

    def stop(self) -> None:
        """Tell the receiver that the query has ended."""
        self._stopped.set()
        with self._lock, contextlib.suppress(AgentError):
            if self._client is not None:
                self._client.release()
            self._client = None

    def _bounds(self) -> tuple[int, int]:
        return self._ask(lambda client: client.bounds())

    def _ask(self, question: Callable[[_core.SourceClient], Answer]) -> Answer:
        """Ask the receiver; if it was lost it is started again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self._lock:
                    return question(self._connected())
            except AgentError:
                with self._lock:
                    self._client = None
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)

    def _connected(self) -> _core.SourceClient:
        if self._client is None:
            first = not self._addr
            client, self._addr = find_or_start(replace(self._spec, after=self._incarnation))
            owner = f"process {os.getppid()} on {platform.node()}"
            self._incarnation = client.claim(owner, self._incarnation)
            self._client = client
            if first:
                # Executors may be reading while Spark asks nothing for minutes.
                threading.Thread(target=self._watch, name="clonos-receiver", daemon=True).start()
        return self._client

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            # What is wrong comes up again at Spark's next question.
            with contextlib.suppress(Exception):
                self._bounds()

    def _lost(self, position: int, safe: int) -> None:
        options = self._spec.options
        message = (
            f"the checkpoint of the query is at row {position} of the source, but its log "
            f"{options.log} ends at {safe}: they do not belong together. Give the query its old "
            "`logDir` and `name`, or a new checkpointLocation"
        )
        raise CorruptLog(message, "SOURCE_TRUNCATED")


def _with_time(rows: pa.Array, received: int, *, timestamps: bool) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_struct_array(rows)
    if not timestamps:
        return batch
    reading = pa.scalar(received, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return batch.append_column(
        pa.field(TIMESTAMP, reading.type), pa.repeat(reading, batch.num_rows)
    )


__all__ = ["LogRange", "LogReader"]
