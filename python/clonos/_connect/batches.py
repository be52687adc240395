"""``foreachBatch`` functions of clients, which Spark runs in a process of its own on its host.

Such a process is told the number of a batch and nothing of the query. The host process finds out,
by the DataFrame that it was handed; its jobs say so by a tag, as those of an epoch do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clonos import _attached, _core
from clonos._connect.names import know_registered
from clonos._connect.requests import HostProcess
from clonos._connect.tags import tagged
from clonos._operators.foreach_batch import BatchFunction, CausalBatch, batch_setting
from clonos._worker.place import batch_tag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ServerBatch:
    """What ``foreachBatch`` is given; travels to the server."""

    def __init__(self, host: HostProcess, config: _core.SessionConfig, fn: BatchFunction) -> None:
        self._host = host
        self._config = config.to_bytes()
        self._causal = CausalBatch.of(fn)
        self.__name__ = self._causal.label
        self.__wrapped__ = fn

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Run the function for a batch."""
        config = _core.SessionConfig.from_bytes(self._config)
        spark: Any = batch.sparkSession
        frame: Any = batch
        # Private names of Spark, seen in 4.3.
        names = spark.client._user_id or "", spark.session_id, frame._plan._relation_id
        query, execution, attempt = self._host.ask_here("batch", *names)
        _attached.set_current(BatchSession(spark, config))
        know_registered()
        tag = batch_tag(query, number, execution)
        # The setting for threads that have no tags, the tag for other sessions.
        with batch_setting(spark, tag), tagged(spark, tag):
            self._causal.run(config, self._check, (query, attempt), batch, number)

    def _check(self, query: str, batch: int) -> None:
        self._host.ask_here("check", query, batch)


class BatchSession:
    """The attached session, where a ``foreachBatch`` function runs."""

    def __init__(self, spark: SparkSession, config: _core.SessionConfig) -> None:
        self.spark = spark
        self.config = config
        #: The function is run while its stream does.
        self.is_active = True

    def open_epochs(self) -> list[str]:
        """Of this process's own there are none."""
        return []

    def stop(self) -> None:
        """Forget it."""
        self.is_active = False

    def watch(self, spark: SparkSession) -> None:
        """Nothing: the host process listens to all streams."""

    def watch_streams(self) -> None:
        """Nothing, as `watch`."""

    def rdd_is_made(self, number: int, rdd: Any, use: Any) -> None:
        """Nothing: here there are no RDDs."""

    def partitions_of_rdd(self, number: int) -> None:
        """Nothing, as `rdd_is_made`."""

    def mark_rows(self, function: Any, *, takes_marks: bool) -> None:
        """Nothing: rows are told apart by their arguments and ``row_key=`` alone."""


def batch_of(spark: SparkSession, user: str, session: str, frame: str) -> tuple[str, int] | None:
    """Query of a batch's DataFrame in a session of a client, and the batch's SQL execution.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session of the server.
    user, session, frame : str
        Spark Connect's names of them.

    Notes
    -----
    Private names of Spark, seen in 4.3: ``SparkConnectService.sessionManager``,
    ``SessionHolder.dataFrameCache``, ``StreamExecution.sparkSessionForStream``, ``lastExecution``,
    ``SQLExecution.executionIdToQueryExecution``.
    """
    jvm: Any = spark._jvm
    jspark: Any = spark._jsparkSession
    service = jvm.org.apache.spark.sql.connect.service
    manager = getattr(getattr(service, "SparkConnectService$"), "MODULE$").sessionManager()
    holder = manager.getIsolatedSessionIfPresent(service.SessionKey(user, session))
    batch = holder.get().dataFrameCache().get(frame) if holder.isDefined() else None
    if batch is None:
        return None
    execution = jvm.org.apache.spark.sql.execution
    executions = getattr(getattr(execution, "SQLExecution$"), "MODULE$")
    # As `active_streams` of a classic program has it.
    streams = jspark.sharedState().activeStreamingQueries().elements()
    while streams.hasMoreElements():
        stream = streams.nextElement()
        # Each has a session of its own.
        if stream.sparkSessionForStream().equals(batch.sparkSession()):
            last = stream.lastExecution()
            for running in executions.executionIdToQueryExecution().entrySet():
                if last.equals(running.getValue()):
                    return str(stream.id()), int(running.getKey())
    return None
