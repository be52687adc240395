"""The loop's end that is read: offsets are epochs that are committed.

Spark's offset log says up to which epoch a batch reads, so that a batch that runs again reads the
same rows, and never its own: they were not there when its end was decided.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from clonos._arrow_types import arrow_schema
from clonos._loops.folder import (
    NOTHING,
    Described,
    Epoch,
    LoopFolder,
    Part,
    epochs_between,
    files_of,
)
from clonos._loops.rows import conformed, read_rows
from clonos._loops.sink import later_epochs
from clonos._sinks import place
from clonos._sinks.options import Options
from clonos._sources.options import check_known, duration, truth, whole
from clonos._sources.reader import ROWS_PER_TASK
from clonos._sources.timers import HAS_STARTS
from clonos.errors import CorruptLog

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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

OPTIONS = ("path", "delay", "maxRecordsPerBatch", "numPartitions", "untilEmpty")
Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """What a user may say about reading a loop.

    Attributes
    ----------
    folder : LoopFolder
        ``path``.
    delay : int
        ``delay`` in milliseconds: for how long what an epoch wrote does not come back.
    max_rows : int or None
        ``maxRecordsPerBatch``.
    partitions : int
        ``numPartitions``, or 0 if it was not given.
    until_empty : bool
        ``untilEmpty``: whether ``Trigger.AvailableNow`` goes on with what it wrote itself.
    """

    folder: LoopFolder
    delay: int
    max_rows: int | None
    partitions: int
    until_empty: bool

    @classmethod
    def read(cls, options: Mapping[str, str]) -> LoopOptions:
        """Check the options of the source; names in any case."""
        check_known("clonos-loop", options, OPTIONS, ())
        path = Options("clonos-loop", {"path": options.get("path", "")}, ()).local_path()
        limited = "maxRecordsPerBatch" in options
        return cls(
            folder=LoopFolder(Path(path).absolute()),
            delay=duration(options, "delay", "0s"),
            max_rows=whole(options, "maxRecordsPerBatch", 1) if limited else None,
            partitions=whole(options, "numPartitions", 1) if "numPartitions" in options else 0,
            until_empty=truth(options, "untilEmpty", default=False),
        )


class LoopFiles(InputPartition):
    """Some files of a loop, and the last of the epochs that wrote them."""

    def __init__(self, files: list[tuple[str, Part]], newest: Epoch) -> None:
        super().__init__([name for name, _ in files])
        self.files = files
        self.newest = newest

    def __repr__(self) -> str:
        return f"LoopFiles({len(self.files)} files up to epoch {self.newest.number})"


class LoopReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Reader of a loop; there is one, as what it has read is removed."""

    def __init__(self, options: LoopOptions, schema: StructType, retained: int) -> None:
        self._options = options
        self._folder = options.folder
        self._schema = schema
        self._retained = retained
        # Before Spark 4.2 a source does not learn where a batch starts, so nobody would know it.
        self._first: Offset = {"reader": uuid.uuid4().hex if HAS_STARTS else "", "epoch": NOTHING}
        self._until: int | None = None
        self._known: dict[int, Epoch] = {}
        self._newest: Epoch | None = None
        self._is_checked = False
        self._described: Described | None = None
        self._describe()

    def __getstate__(self) -> dict[str, Any]:
        # What executors need.
        return {"_schema": self._schema, "_folder": self._folder}

    def initialOffset(self) -> Offset:
        """Return where a new query begins. Spark asks more than once."""
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of option ``maxRecordsPerBatch``."""
        most = self._options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Return up to where the next batch goes: whole epochs, committed, and not too young."""
        if start is None:
            start = {**self._first, "epoch": self._folder.removed_up_to()}
        self._check_reader(start)
        last = self._last()
        if start["epoch"] > last:
            self._lost(start["epoch"], last)
        for number in [known for known in self._known if known <= start["epoch"]]:
            del self._known[number]
        chosen = self._due(epochs_between(self._folder, start["epoch"], last, self._known))
        if isinstance(limit, ReadMaxRows):
            chosen = _within(chosen, limit.max_rows)
        return {**start, "epoch": chosen[-1].number} if chosen else start

    def reportLatestOffset(self) -> Offset:
        """Return the last epoch that has rows, for the query's progress."""
        return {**self._first, "epoch": self._last()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: what the run itself writes waits for the next one."""
        if not self._options.until_empty:
            self._until = self._last()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Put the files of a batch into groups of about as many rows, in order."""
        epochs = epochs_between(self._folder, start["epoch"], end["epoch"], self._known)
        files = list(files_of(epochs))
        rows = sum(part.rows for _, part in files)
        most = self._options.partitions or min(os.cpu_count() or 1, -(-rows // ROWS_PER_TASK))
        tasks = min(most, len(files))

        ends = accumulate(part.rows for _, part in files)
        firsts = [end - part.rows for end, (_, part) in zip(ends, files, strict=True)]

        def task_of(number: int) -> int:
            return firsts[number] * tasks // rows

        groups = groupby(range(len(files)), task_of)
        return [self._files([files[number] for number in some]) for _, some in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read files: runs on an executor.

        Raises
        ------
        EpochFenced
            If they have rows of the very epoch that reads, or later ones: the query has gone back.
        """
        if not isinstance(partition, LoopFiles):
            raise TypeError(f"LoopFiles are read, not {partition!r}")
        task = place.streaming_task()
        newest = partition.newest
        if task is not None and task[0] == newest.query and task[1] <= newest.number:
            raise later_epochs(self._folder, *task, newest)
        schema = arrow_schema(self._schema)
        for name, part in partition.files:
            for batch in read_rows(Path(name), part):
                yield conformed(batch, schema)

    def commit(self, end: Offset) -> None:
        """Remove what Spark has committed and cannot go back to."""
        if end["epoch"] != NOTHING:
            self._folder.committed(end["reader"], end["epoch"], self._retained)

    def stop(self) -> None:
        """Have nothing to stop."""

    def _files(self, files: list[tuple[Epoch, Part]]) -> LoopFiles:
        named = [(str(self._folder.epoch(epoch.number) / p.name), p) for epoch, p in files]
        return LoopFiles(named, files[-1][0])

    def _due(self, epochs: list[Epoch]) -> list[Epoch]:
        """Those that a batch may read now; they come in their order."""
        latest = time.time_ns() // 1_000_000 - self._options.delay
        chosen = []
        for epoch in epochs:
            if self._until is not None and epoch.number > self._until:
                break
            if self._options.delay and epoch.at > latest:
                break
            chosen.append(epoch)
        return chosen

    def _last(self) -> int:
        """The last epoch that has rows."""
        self._describe()
        # Spark asks a hundred times a second, and an epoch that is there stays as it is.
        if self._newest is None or self._folder.numbers()[-1:] != [self._newest.number]:
            self._newest = self._folder.newest()
        return NOTHING if self._newest is None else self._newest.last

    def _describe(self) -> None:
        """See that the rows have the columns that the query expects, once they are known."""
        if self._described is None:
            self._described = self._folder.described()
            if self._described is not None:
                self._folder.check_schema(self._described, self._schema.json())

    def _check_reader(self, start: Offset) -> None:
        if not self._is_checked:
            self._folder.check_reader(start["reader"])
            self._is_checked = True

    def _lost(self, start: int, last: int) -> None:
        end = "is empty" if last == NOTHING else f"ends at epoch {last}"
        message = (
            f"the query has read the loop up to epoch {start}, but {str(self._folder.root)!r} "
            f"{end}: they do not belong together. Give the query its old loop back, or a new "
            "checkpointLocation and a new loop"
        )
        raise CorruptLog(message, "SOURCE_TRUNCATED")


def _within(epochs: list[Epoch], rows: int) -> list[Epoch]:
    """Return the first epochs that have so many rows at most; at least one."""
    chosen: list[Epoch] = []
    for epoch in epochs:
        rows -= epoch.rows
        if chosen and rows < 0:
            break
        chosen.append(epoch)
    return chosen


__all__ = ["LoopFiles", "LoopOptions", "LoopReader"]
