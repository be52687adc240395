"""The application's own epochs, of all that stands in no ``epoch`` scope."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clonos._code import PYTHON_VERSION
from clonos._driver import spark_private
from clonos._uses import Use
from clonos._worker.place import (
    BATCH_PROPERTY,
    BATCH_QUERY,
    EPOCH_PROPERTY,
    EXECUTION_PROPERTY,
    QUERY_PROPERTY,
    STAMP_PROPERTY,
    application_query,
    epoch_of,
    execution_epoch,
    rdd_epoch,
    stage_epoch,
)

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

    from clonos import _core

_log = logging.getLogger("clonos")


class _Rdd(NamedTuple):
    """Weak references to what an RDD's function holds, and to the RDD that it is made of.

    `file` is where Spark keeps what the function holds.
    """

    held: Any
    made_of: Any
    file: Path


def thread_run(context: SparkContext) -> tuple[str, int | str, int, int | None] | None:
    """In which run of an ``epoch`` scope, or of a stream's batch, this thread is, if in any.

    Query and epoch, the stamp of the run of a named one, and the execution of a batch.
    """
    names = (QUERY_PROPERTY, BATCH_PROPERTY, EPOCH_PROPERTY)
    said = {name: context.getLocalProperty(name) for name in names}
    query, epoch = epoch_of({name: value for name, value in said.items() if value}, "")
    if epoch is None:
        return None
    if query == BATCH_QUERY:
        return query, epoch, int(context.getLocalProperty(STAMP_PROPERTY) or 0), None
    execution = context.getLocalProperty(EXECUTION_PROPERTY)
    return query, epoch, 0, None if execution is None else int(execution)


class OwnEpochs:
    """Commits the epochs of SQL executions, stages and RDDs once nobody can ask for them again.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The attached session.
    agent : _core.Agent
        The driver's agent.
    app_id : str
        The application whose epochs they are.
    stopped : threading.Event
        Set when what fails is no longer of interest.
    """

    def __init__(
        self, spark: SparkSession, agent: _core.Agent, app_id: str, stopped: threading.Event
    ) -> None:
        self._spark = spark
        self._agent = agent
        self._query = application_query(app_id)
        self._stopped = stopped
        # SQL executions whose rows are fetched one partition at a time.
        self._iterated: set[int] = set()
        # By their numbers; and where the JVM puts those of which nothing is left.
        self._rdds: dict[int, _Rdd] = {}
        self._rdds_lock = threading.Lock()
        self._some_are_gone = False
        self._gone = spark_private.reference_queue(spark.sparkContext)

    @contextlib.contextmanager
    def what_fails_is_logged(self) -> Iterator[None]:
        """Go on after whatever py4j raises of a JVM that goes: it is tried again."""
        try:
            yield
        except Exception:  # noqa: BLE001, see above
            if not self._stopped.is_set():
                _log.debug("what Spark has ended was not looked after", exc_info=True)

    def executions(self) -> set[int]:
        """Numbers of the SQL executions that record in no ``epoch`` scope."""
        return self._open("sql-")

    def commit_ended(self, executions: set[int]) -> None:
        """Commit the epochs of what has ended, of SQL executions those of `executions`."""
        with self.what_fails_is_logged():
            self._commit_stages()
        with self.what_fails_is_logged():
            self._commit_executions(executions)
        with self.what_fails_is_logged():
            self._commit_rdds()

    def rdd_is_made(self, number: int, rdd: RDD[Any], use: Use) -> Any:
        """Begin to watch whether an RDD can still be computed.

        Within an epoch it gets its log now: in the order in which the program makes RDDs, not in
        that in which their tasks come.

        Returns
        -------
        pyspark.Broadcast
            For its function to hold. Spark keeps it with each RDD that runs the function, be it one
            that only the JVM knows by now, so it goes when the last of them does.
        """
        context = self._spark.sparkContext
        run = thread_run(context)
        if run is not None:
            self._agent.rdd_is_made(
                *run, use.operator, use.code, PYTHON_VERSION, use.token, use.named
            )
        held, reference, file = spark_private.watched(context, self._gone)
        with self._rdds_lock:
            self._rdds[number] = _Rdd(reference, spark_private.made_of(rdd), file)
        return held

    def partitions_of_rdd(self, number: int) -> int | None:
        """How many partitions an RDD has, if that is known; to be asked while a task computes it.

        Spark has them then. Before, it may have to list files for that, or begin to compute.
        """
        # Without the lock: a task waits, and what has it may wait for Spark.
        known = self._rdds.get(number)
        made_of = None if known is None else known.made_of.get()
        return None if made_of is None else int(made_of.getNumPartitions())

    def _commit_rdds(self) -> None:
        # As many as the JVM has put there: nobody asks for each RDD that there is each time.
        while self._gone.poll() is not None:
            self._some_are_gone = True
        if self._some_are_gone:
            self._forget_gone()
        # A task that was left behind may have begun the epoch of one once more.
        for number in self._open("rdd-") - self._rdds.keys():
            with self.what_fails_is_logged():
                self._commit(rdd_epoch(number))

    def _forget_gone(self) -> None:
        with self._rdds_lock:
            known = self._rdds.items()
            gone = {number: rdd.file for number, rdd in known if rdd.held.get() is None}
            for number in gone:
                del self._rdds[number]
        self._some_are_gone = False
        for file in gone.values():
            file.unlink(missing_ok=True)

    def _commit_stages(self) -> None:
        """Those of jobs over RDDs go when no job needs the stage any more."""
        stages = self._open("stage-")
        if stages:
            running = spark_private.running_stages(self._spark.sparkContext, stages)
            for stage in stages - running:
                with self.what_fails_is_logged():
                    self._commit(stage_epoch(stage))

    def _commit_executions(self, executions: set[int]) -> None:
        left = executions - self._iterated
        ended = {e for e in left if spark_private.execution_ended(self._spark, e)}
        # The jobs of a `toLocalIterator` run when their execution is over.
        if ended:
            ended -= spark_private.running_executions(self._spark.sparkContext)
        # Found once: they have a job for each partition, and no end.
        self._iterated |= {e for e in ended if spark_private.goes_on(self._spark, e)}
        for execution in ended - self._iterated:
            with self.what_fails_is_logged():
                self._commit(execution_epoch(str(execution)))

    def _commit(self, epoch: str) -> None:
        self._agent.commit_epoch(self._query, epoch)

    def _open(self, prefix: str) -> set[int]:
        epochs = (str(epoch) for of, epoch in self._agent.live_epochs() if of == self._query)
        return {int(e.removeprefix(prefix)) for e in epochs if e.startswith(prefix)}
