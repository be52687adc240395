"""`ReplayableSource`: makes of a receiver a source that Spark can read as often as it likes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSource

from clonos._config import ALL_ADDRESSES
from clonos._sources.options import SourceOptions, check_known, source_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from clonos import _core
    from clonos._sources.reader import LogReader

TIMESTAMP = "timestamp"


class SourceLog(Protocol):
    """The log that a receiver fills."""

    @property
    def taken(self) -> int:
        """Items that are safe, over all runs: where a sender that is acknowledged goes on."""

    @property
    def stopping(self) -> bool:
        """Whether `ReplayableSource.receive` should return."""

    def append(self, rows: pa.RecordBatch | Sequence[tuple[Any, ...]]) -> int:
        """Take in rows; returns when they are safe, held back while the log is full.

        Parameters
        ----------
        rows : pyarrow.RecordBatch or sequence of tuples
            With the columns of the source's schema, in that order.

        Returns
        -------
        int
            Rows that are safe, over all runs.
        """


class ReplayableSource(DataSource):
    """Base class of sources that stand on a log: say what the rows are, and receive them.

    `receive` runs in a process of its own beside the driver, the *receiver*. What it appends to the
    log is on disk before `SourceLog.append` returns, and stays until Spark has committed it, so
    batches can be read again after any failure. If `receive` raises or returns, it is called again
    after a pause.

    Every source of this kind has these options.

    ====================== =========== =======================================================
    option                 default     meaning
    ====================== =========== =======================================================
    ``name``               from others name of the log; each query needs its own
    ``logDir``             see below   folder for logs, or ``s3://``, ``gs://`` or ``abfss://``;
                                       must survive what you want to survive
    ``memory``             64MiB       rows kept in memory for the next batch
    ``disk``               16GiB       rows that may wait for a commit; past it senders wait
    ``spillPolicy``        eager       ``eager``: synced to disk, or in the store, before
                                       acknowledged; ``availability``: only when memory is full
    ``maxRecordsPerBatch`` no limit    rows of one micro-batch
    ``numPartitions``      see right   tasks of one micro-batch; unless given, one for each 20,000
                                       rows, and at most one for each processor of the driver
    ``includeTimestamp``   false       a column ``timestamp`` with the time of receipt
    ``lingerSeconds``      60          how long the receiver waits for another driver
    ``bindHost``           127.0.0.1   interface on which executors reach the receiver
    ``reachedAs``          bindHost    host under which they reach that interface
    ``ports``              any         ports that the receiver may have there: ``40000-40100``
    ``encrypt``            false       whether what it sends them is encrypted
    ====================== =========== =======================================================

    After ``clonos.attach``, Clonos's own sources have the session's ``checkpoint_dir`` as
    ``logDir``, the driver's hosts as ``bindHost`` and ``reachedAs``, its ``agent_ports`` as
    ``ports``, and ``encrypt`` what it does; else ``logDir`` is the system's temporary folder. An
    object store is told the ``storage_options`` of the session by Clonos's own sources, if its
    ``checkpoint_dir`` is in one of the same kind; else the environment counts.

    Examples
    --------
    >>> class Ticks(clonos.ReplayableSource):
    ...     @classmethod
    ...     def name(cls):
    ...         return "ticks"
    ...
    ...     def schema(self):
    ...         return "symbol string, price double"
    ...
    ...     def receive(self, log):
    ...         for message in connect(self.options["url"]):
    ...             log.append([(message.symbol, message.price)])
    >>> spark.dataSource.register(Ticks)  # doctest: +SKIP
    """

    defaults: ClassVar[Mapping[str, str]] = {}
    #: Names of the options besides those above. If you set it, all others are refused.
    own_options: ClassVar[tuple[str, ...] | None] = None
    # The session whose credentials an object store is given, as bytes.
    session: ClassVar[bytes | None] = None

    def receive(self, log: SourceLog) -> None:
        """Receive, and append to `log`, until ``log.stopping``; to be written by you."""
        message = f"{type(self).__name__} needs a method receive(self, log) that appends to `log`"
        raise NotImplementedError(message)

    def log_name(self) -> str:
        """Return the name of the log unless option ``name`` gives one."""
        return self.name()

    def log_options(self) -> SourceOptions:
        """Return the options of the log, checked."""
        if self.own_options is not None:
            check_known(self.name(), self.options, self.own_options)
        return source_options(self.given_options(), self.log_name())

    def given_options(self) -> Mapping[str, str]:
        """Return the options and their defaults; names in any case."""
        from pyspark.sql.datasource import CaseInsensitiveDict

        own = CaseInsensitiveDict(dict(self.options))
        # Where the session's receivers are reached does not go with another place of this one's.
        there = {*ALL_ADDRESSES, self.defaults.get("bindHost")}
        moved = set() if own.get("bindHost", "") in there else {"reachedAs"}
        known = {name: of for name, of in self.defaults.items() if name not in moved}
        return CaseInsensitiveDict({**known, **own})

    def streamReader(self, schema: StructType) -> LogReader:
        """Return what Spark reads through."""
        from clonos._sources.reader import LogReader

        return LogReader(self, self.log_options(), schema)


class ReceiverLog:
    """The log, as `ReplayableSource.receive` gets it."""

    def __init__(self, receiver: _core.SourceReceiver, schema: pa.Schema) -> None:
        self._receiver = receiver
        self._schema = schema

    def __repr__(self) -> str:
        return repr(self._receiver)

    @property
    def taken(self) -> int:
        """See `SourceLog.taken`."""
        return self._receiver.taken

    @property
    def stopping(self) -> bool:
        """See `SourceLog.stopping`."""
        return self._receiver.stopping

    def receive_socket(self, **settings: Any) -> None:
        """Receive lines in the core, until stopped."""
        self._receiver.receive_socket(**settings)

    def receive_http(self, **settings: Any) -> None:
        """Take requests in the core, until stopped."""
        self._receiver.receive_http(**settings)

    def append(self, rows: pa.RecordBatch | Sequence[tuple[Any, ...]]) -> int:
        """See `SourceLog.append`."""
        if isinstance(rows, pa.RecordBatch):
            batch = rows.cast(self._schema)
        else:
            columns = zip(*rows, strict=True) if rows else ([] for _ in self._schema)
            arrays = [
                pa.array(values, field.type)
                for values, field in zip(columns, self._schema, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if batch.num_rows == 0:
            return self.taken
        self._receiver.wait(self._receiver.append(batch, batch.num_rows))
        return self.taken


__all__ = ["TIMESTAMP", "ReceiverLog", "ReplayableSource", "SourceLog"]
