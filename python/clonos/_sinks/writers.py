"""Spark's hooks, the same for every sink: tasks stage, the commit publishes.

Spark makes a new writer in a new process for each of write, commit and abort, so all that a
commit knows is in the messages of its tasks and in the target.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from clonos._sinks import place
from clonos._sinks.fence import Claim
from clonos._sinks.messages import Staged
from clonos._sinks.options import Guarantee, Options
from clonos._sinks.place import Place
from clonos.errors import ClonosError, ConfigError

Batches = Iterator[pa.RecordBatch]


class Target(ABC):
    """Where rows go; one class for each sink. It travels to tasks, so it holds settings only.

    Parameters
    ----------
    options : Options
        What the user wrote.
    schema : StructType
        Schema of the rows.
    """

    known: ClassVar[tuple[str, ...]] = ()
    # Whether a whole table can be replaced, as outputMode("complete") asks for.
    replaces: ClassVar[bool] = False

    def __init__(self, options: Options, schema: StructType) -> None:
        self.schema = schema
        self.guarantee = options.guarantee()
        self.replace = False

    @property
    @abstractmethod
    def name(self) -> str:
        """What is written to: tells the targets of batch jobs apart."""

    def query_in_stream(self, query: str) -> str:
        """Return the name under which a query writes here from ``foreachBatch``.

        There it may write to several tables of one database, each with a fence of its own.
        """
        return f"{query}:{self.name}"

    @abstractmethod
    def stage(self, where: Place, batches: Batches) -> Staged:
        """Keep a task's rows where nobody sees them (on an executor)."""

    def write_now(self, where: Place, batches: Batches) -> Staged:
        """Write a task's rows at once, for ``at_least_once`` (on an executor).

        A sink that only the driver can write to stages them; its `commit` asks no fence.
        """
        return self.stage(where, batches)

    @abstractmethod
    def commit(self, staged: list[Staged], claim: Claim) -> None:
        """Publish what the tasks of an epoch staged, unless it has been (on the driver).

        Raises
        ------
        EpochFenced
            If another live driver writes the same query.
        """

    def abort(self, staged: list[Staged]) -> None:  # noqa: B027 - what is in messages just goes
        """Remove what tasks staged (on the driver). What no message names waits for a commit."""

    def write(self, where: Place, batches: Batches) -> Staged:
        """Do a task's part."""
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            return self.write_now(where, batches)
        return self.stage(where, batches)


def staged_of(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    """Return the messages of tasks that came to their end."""
    return [message for message in messages if isinstance(message, Staged)]


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the epochs of a streaming query."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, iterator: Batches) -> Staged:
        """Stage the rows of one task.

        Raises
        ------
        ClonosError
            If Spark does not say which query and epoch the task is of.
        """
        found = place.streaming_task()
        if found is None:
            raise ClonosError(f"{self.target.name}: a task of no streaming query writes a stream")
        query, epoch = found
        where = Place(query, str(epoch), place.partition(), uuid.uuid4().hex)
        return self.target.write(where, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish epoch `batchId`; without tasks there is nothing to publish."""
        staged = staged_of(messages)
        if staged:
            driver = place.this_driver()
            self.target.commit(staged, Claim(staged[0].query, batchId, driver, str(batchId)))

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002 - the messages say what to remove
    ) -> None:
        """Remove what was staged for epoch `batchId`."""
        self.target.abort(staged_of(messages))


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch job as one epoch.

    In a ``foreachBatch`` function with option ``epoch`` set to the number of the batch, it is the
    epoch of the streaming query, as if the query had written here itself.
    """

    def __init__(self, target: Target, epoch: str | None) -> None:
        self.target = target
        self.named = epoch is not None
        # Made once for a job: this object travels to its tasks and to the commit.
        self.label = uuid.uuid4().hex if epoch is None else epoch
        self.alone = f"batch:{target.name}:{self.label}"

    def write(self, iterator: Batches) -> Staged:
        """Stage the rows of one task."""
        stream = place.streaming_task()
        query = self.alone
        if stream is not None and self.label == str(stream[1]):
            query = self.target.query_in_stream(stream[0])
        where = Place(query, self.label, place.partition(), uuid.uuid4().hex)
        return self.target.write(where, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the epoch."""
        staged = staged_of(messages)
        if staged:
            query = staged[0].query
            epoch = 0 if query == self.alone else int(self.label)
            self.target.commit(
                staged, Claim(query, epoch, place.this_driver(), self.label, self.named)
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what was staged."""
        self.target.abort(staged_of(messages))


class Sink(DataSource):
    """Base of the sinks: a name for users and a target."""

    sink: ClassVar[str]
    target: ClassVar[type[Target]]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return cls.sink

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of a streaming query.

        Raises
        ------
        ConfigError
            If an option is refused, or the output mode.
        """
        return StreamWriter(self._target(schema, overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch job.

        Raises
        ------
        ConfigError
            If an option is refused, or the mode.
        """
        target = self._target(schema, overwrite)
        return BatchWriter(target, {k.lower(): v for k, v in self.options.items()}.get("epoch"))

    def _target(self, schema: StructType, overwrite: bool) -> Target:
        options = Options(self.sink, self.options, self.target.known)
        target = self.target(options, schema)
        if overwrite and not self.target.replaces:
            message = (
                f"{self.sink} cannot replace what is there (outputMode 'complete', mode "
                "'overwrite'); use 'append' or 'update'"
            )
            raise ConfigError(message, "CONFIG")
        target.replace = overwrite
        return target
