"""The attached session: what makes epochs begin and end."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from clonos import _attached, _core
from clonos._config import parse_location
from clonos._driver import spark_private
from clonos._driver.adopt import Adoption
from clonos._driver.kept_threads import KeptThreads
from clonos._driver.listener import progress_listener
from clonos._driver.local_iterators import LocalIterators
from clonos._driver.metrics import serve
from clonos._driver.own_epochs import OwnEpochs
from clonos._driver.row_marks import RowMarks
from clonos._driver.strays import Strays
from clonos._epochs import BATCH_BYTES, BATCH_BYTES_SETTING, STAMP_BITS, check_epoch_name
from clonos._operators.foreach_batch import CausalBatch
from clonos._stats import Stats
from clonos._temporary import SESSION_FILE
from clonos._worker.place import (
    BATCH_QUERY,
    EPOCH_PROPERTY,
    QUERY_PROPERTY,
    STAMP_PROPERTY,
    application_query,
)
from clonos.errors import ConfigError

if TYPE_CHECKING:
    import os

    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
    from pyspark.sql.udf import UserDefinedFunction

    from clonos._uses import Use

_log = logging.getLogger("clonos")

EXECUTION_POLL_SECONDS = 1.0
ASYNC_PROGRESS_OPTION = "asyncProgressTrackingEnabled"
ASYNC_PROGRESS_REASON = (
    "with this option of a streaming query Spark commits a batch after the next one has begun, so "
    "a batch may run again whose log is gone; leave it out where Clonos is at work"
)


class Session:
    """A Spark session with causal logging; made by `attach`.

    Attributes
    ----------
    spark : pyspark.sql.SparkSession
        The session attached to.
    config : _core.SessionConfig
        What tasks are told; its ``repr`` leaves the secret out.
    """

    def __init__(
        self,
        spark: SparkSession,
        agent: _core.Agent,
        config: _core.SessionConfig,
        folder: Path,
        asked: dict[str, Any],
        *,
        iterators: LocalIterators,
        threads: KeptThreads,
    ) -> None:
        self.spark = spark
        #: Settings that `attach` was called with.
        self.asked = asked
        self.config = config
        self._agent = agent
        self._folder = folder
        self._stopped = threading.Event()
        # How many threads are in each epoch.
        self._epochs: Counter[str] = Counter()
        self._stamps: dict[str, int] = {}
        # Of those that are open, the ones of which some block has raised.
        self._raised: set[str] = set()
        self._epochs_lock = threading.Lock()
        # Ids of streaming queries by their names.
        self._named: dict[str, str] = {}
        # Runs in which streaming queries were started last.
        self._runs: dict[str, str] = {}
        self._own = OwnEpochs(spark, agent, config.app_id, self._stopped)
        self._closing: list[Callable[[], None]] = []
        self._adoption: Adoption | None = None
        self._marks = RowMarks(spark)
        self._iterators = iterators
        self._threads = threads
        self._attempts = itertools.count(1)
        # Of the epochs that are open, on whichever threads.
        self._strays: list[Strays] = []
        #: Sessions of the application that were attached; those that hand over less meanwhile.
        self.joined: list[SparkSession] = []
        self._smaller_batches: list[SparkSession] = []
        self._listener = progress_listener(self._begin_query, self._end_batch)
        # Sessions of the application whose queries are listened to, by what tells them apart.
        self._watched: dict[str, StreamingQueryManager] = {}
        self._watching = threading.Lock()
        self.join(spark)
        self._watcher = threading.Thread(
            target=self._watch_executions, name="clonos-executions", daemon=True
        )
        self._watcher.start()

    def __repr__(self) -> str:
        state = f"driver agent at {self._agent.addr}"
        if not self.is_active:
            state = "stopped" if self._stopped.is_set() else "its Spark session was stopped"
        return f"<clonos session of {self.config.app_id}: {state}>"

    def adopt(self) -> None:
        """Replace what `attach` was told to adopt; it does so itself."""
        self._adoption = Adoption(self.asked["adopt"])

    @property
    def is_active(self) -> bool:
        """Whether neither this session nor the Spark session under it was stopped."""
        return not self._stopped.is_set() and spark_private.is_running(self.spark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def epoch(self, name: str) -> Iterator[None]:
        """Make everything this thread runs on Spark one epoch, called `name`.

        Threads that should belong to it are started as ``pyspark.InheritableThread``; what a pool
        runs is passed through ``pyspark.inheritable_thread_target``. Jobs that ran outside while
        the epoch was open are named in a warning at its end.

        When the block ends well the epoch is committed and its log dropped. If it raises, or the
        driver dies, the log stays: run it again under the same name (with ``checkpoint_dir``, in
        another process too), and it goes on with what was recorded. Blocks of one name that are
        open at the same time, in threads or one in the other, are one: it ends with the last.

        Parameters
        ----------
        name : str
            Names the work, such as ``"scores-2026-11-20"``: not empty, at most 200 characters.

        Raises
        ------
        ConfigError
            If the name cannot be one, or the session was stopped.
        InconsistentEpoch
            At the end, if tasks of one operator used different logs of the one before it. The
            epoch is not committed then.
        """
        check_epoch_name(name)
        if not self.is_active:
            message = f"no epoch can begin in {self!r}: use what clonos.attach(spark) returned last"
            raise ConfigError(message, "CONFIG")
        with self._epochs_lock:
            if not self._epochs[name]:
                self._stamps[name] = secrets.randbits(STAMP_BITS) | 1
                # Uses of this run are matched with the logs of the one before.
                self._agent.begin_run(BATCH_QUERY, name, self._stamps[name])
            self._epochs[name] += 1
            of_block = {EPOCH_PROPERTY: name, STAMP_PROPERTY: str(self._stamps[name])}
        try:
            context = self.spark.sparkContext
            before = {of: context.getLocalProperty(of) or "" for of in of_block}
            _set_properties(context, of_block)
            strays = Strays(self._own.executions())
            self._strays.append(strays)
            try:
                yield
            finally:
                # The block may have stopped Spark at its end.
                if spark_private.is_running(self.spark):
                    _set_properties(context, before)
                self._strays.remove(strays)
                strays.see(self._own.executions())
                # It points at the block, so it must be given from here.
                strays.warn(name)
        except BaseException:
            self._leave(name, ended=False)
            raise
        self._leave(name, ended=True)

    def open_epochs(self) -> list[str]:
        """Names of the epochs that are open in some thread."""
        with self._epochs_lock:
            return sorted(name for name, blocks in self._epochs.items() if blocks)

    def _leave(self, name: str, *, ended: bool) -> None:
        """Commit an epoch with the last of its blocks, if all ended well."""
        # Held until it is committed: a block that is entered now begins another run.
        with self._epochs_lock:
            self._epochs[name] -= 1
            if not ended:
                self._raised.add(name)
            if self._epochs[name]:
                return
            del self._epochs[name]
            del self._stamps[name]
            self._agent.end_run(BATCH_QUERY, name)
            raised = name in self._raised
            self._raised.discard(name)
            if raised and ended:
                _log.warning("epoch %s was not committed, as one of its blocks raised", name)
            self._pass_on_traces()
            if not raised:
                self.check(BATCH_QUERY, name)
                self._agent.commit_epoch(BATCH_QUERY, name)

    def foreach_batch(
        self, fn: Callable[[DataFrame, int], None]
    ) -> Callable[[DataFrame, int], None]:
        """Wrap a ``foreachBatch`` function so that the causal services work in it too.

        The function runs on the driver. What it takes from `clonos.time`, `clonos.random` and
        `clonos.call` is recorded before it gets it, and the same if Spark runs the batch again.

        Parameters
        ----------
        fn : callable
            Takes the batch (DataFrame) and its number (int).

        Returns
        -------
        callable
            To be passed to ``DataStreamWriter.foreachBatch``.
        """
        causal = CausalBatch.of(fn)

        @functools.wraps(fn)
        def causal_batch(batch: DataFrame, number: int) -> None:
            of = self._query_of(batch), self.next_attempt()
            causal.run(self.config, self.check, of, batch, number)

        return causal_batch

    def rdd_is_made(self, number: int, rdd: RDD[Any], use: Use) -> Any:
        """Begin to watch an RDD, whose epoch ends with it; see `OwnEpochs.rdd_is_made`."""
        return self._own.rdd_is_made(number, rdd, use)

    def partitions_of_rdd(self, number: int) -> int | None:
        """How many partitions an RDD has that a task computes, if that is known."""
        return self._own.partitions_of_rdd(number)

    def next_attempt(self) -> int:
        """Number the runs of batch functions, as Spark numbers attempts of tasks."""
        return next(self._attempts)

    def _query_of(self, batch: DataFrame) -> str:
        """Query of a batch that Spark has handed to a ``foreachBatch`` function of this thread."""
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_PROPERTY)
        return query or application_query(self.config.app_id)

    def check(self, query: str, epoch: int | str) -> None:
        """Check that what the tasks of an epoch took in belongs together, before it is committed.

        Done by `epoch` and `foreach_batch`; elsewhere nothing can be refused after the fact.

        Parameters
        ----------
        query, epoch
            As for `commit`.

        Raises
        ------
        InconsistentEpoch
            If tasks of one operator used different logs of the operator that sent to them.
        """
        self._agent.check_epoch(query, epoch)

    def commit(self, query: str, epoch: int | str) -> None:
        """Drop the log of an epoch that is committed: normally done by Clonos itself.

        Parameters
        ----------
        query : str
            Id of a streaming query, or ``"batch"`` for the epochs of `epoch`.
        epoch : int or str
            Number of the micro-batch (commits all before it too), or the epoch's name.
        """
        self._agent.commit_epoch(query, epoch)

    def savepoint(self, query: StreamingQuery | str, path: str | os.PathLike[str]) -> None:
        """Write all keyed state of a streaming query to a place that needs nothing else.

        What is written is what the query's last committed batch left, of all its
        `clonos.transform_with_state`. The query may run on meanwhile, or have ended.
        ``transform_with_state(..., state_from=path)`` begins with it, in any query, application and
        cluster; ``spark.read.format("clonos-state")`` reads it.

        Parameters
        ----------
        query : pyspark.sql.streaming.StreamingQuery or str
            The query, its id or its name. It must have run in this application.
        path : path or URL
            A folder that does not exist yet, or a place in an object store where nothing is; the
            driver writes to it. It is there when all of it is. A store of the kind that
            `checkpoint_dir` is in is told the session's `storage_options`, another one finds its
            credentials in the environment.

        Raises
        ------
        ConfigError
            If there is no such query, it has committed no state, or there is something at `path`,
            or nothing can be made there.
        StateLost
            If some of the state can be read nowhere any more.
        AgentTimeout
            If those that hold the state do not answer.

        Examples
        --------
        >>> session.savepoint(query, "/backup/alarms-2026-11-24")  # doctest: +SKIP
        """
        location = _core.Location(parse_location("path", path), self.config)
        # What Spark has committed, it may not have told yet.
        spark_private.wait_for_events(self.spark.sparkContext)
        self._agent.savepoint(self._id_of(query), location)

    def _id_of(self, query: StreamingQuery | str) -> str:
        if not isinstance(query, str):
            return str(query.id)
        for active in self.spark.streams.active:
            if query == active.name:
                return str(active.id)
        return self._named.get(query, query)

    def stats(self) -> Stats:
        """What every agent holds, what each operator did, and what was not done again."""
        return Stats.parse(self._agent.stats())

    def serve_metrics(self, address: str) -> None:
        """Serve the figures of `stats` for Prometheus until the session stops.

        Parameters
        ----------
        address : str
            Host and port, such as ``"127.0.0.1:9095"``.

        Raises
        ------
        ConfigError
            If it is no address, it is taken, or ``clonos[metrics]`` is not installed.
        """
        self._closing.append(serve(address, self.stats))

    def stop(self) -> None:
        """Stop the driver's agent; executors' agents go with it. Spark itself goes on."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._adoption is not None:
            self._adoption.end()
        self._marks.end()
        self._iterators.end()
        if _attached.latest() is self:
            _attached.set_current(None)
        for streams in list(self._watched.values()):
            with contextlib.suppress(Exception):
                streams.removeListener(self._listener)
        with contextlib.suppress(Exception):
            spark_private.wait_for_events(self.spark.sparkContext)
            for spark in self._smaller_batches:
                spark.conf.unset(BATCH_BYTES_SETTING)
        for close in self._closing:
            close()
        # First: streams that ask for their timers see by it that nobody answers any more.
        (self._folder / SESSION_FILE).unlink(missing_ok=True)
        self._agent.stop()
        self._threads.end()
        self._pass_on_traces()
        shutil.rmtree(self._folder, ignore_errors=True)

    def mark_rows(self, function: UserDefinedFunction, *, takes_marks: bool) -> None:
        """Note a causal function, which may be handed a mark of each row; see `RowMarks`."""
        self._marks.add(function, takes_marks=takes_marks)

    def join(self, spark: SparkSession) -> None:
        """Serve a session of the application: the first one, or one that ``newSession`` made."""
        self.joined.append(spark)
        if not spark_private.is_set(spark, BATCH_BYTES_SETTING):
            spark.conf.set(BATCH_BYTES_SETTING, BATCH_BYTES)
            self._smaller_batches.append(spark)
        self._marks.join(spark)
        self.watch(spark)

    def watch(self, spark: SparkSession) -> None:
        """Listen to the streaming queries of a session of the application: each has its own."""
        self._listen_to(spark_private.session_name(spark), spark.streams)

    def watch_streams(self) -> None:
        """Listen to all sessions of the application in which a streaming query runs."""
        with self._own.what_fails_is_logged():
            others = spark_private.sessions_of_streams(self.spark, self._watched)
            for name, streams in others.items():
                self._listen_to(name, streams)

    def _listen_to(self, name: str, streams: StreamingQueryManager) -> None:
        # Whoever opens a task asks for it, and so does a thread that looks by the second; both go
        # on when it is done.
        with self._watching:
            if name in self._watched:
                return
            streams.addListener(self._listener)
            for query in streams.active:
                # That it was started was told before.
                self._begin_query(str(query.id), query.name, str(query.runId))
            self._watched[name] = streams

    def _begin_query(self, query: str, name: str | None, run: str) -> None:
        if self._runs.get(query) == run:
            return
        if name is not None:
            self._named[name] = query
        self._runs[query] = run
        self._agent.begin_run(query)
        self._refuse_late_commits(query)

    def _end_batch(self, query: str, run: str, batch: int) -> None:
        # It may be heard when the query has gone back, and the batch is to come again.
        if self._runs.get(query, run) == run:
            self.commit(query, batch)

    def _refuse_late_commits(self, query: str) -> None:
        # The beginning of a batch counts as the commit of the one before, whose log goes then.
        if spark_private.commits_late(self.spark, query):
            self._agent.refuse_query(query, ASYNC_PROGRESS_OPTION, ASYNC_PROGRESS_REASON)

    def _watch_executions(self) -> None:
        """Commit the epochs of what has ended and stands in no ``epoch`` scope."""
        while not self._stopped.wait(EXECUTION_POLL_SECONDS):
            with self._own.what_fails_is_logged():
                if not self.config.local:
                    executors = spark_private.executors(self.spark.sparkContext)
                    self._agent.executors_are(executors)
            self._pass_on_traces()
            self.watch_streams()
            executions = self._own.executions()
            for strays in list(self._strays):
                strays.see(executions)
            # Of those that were seen: nothing is committed of which nobody could be warned.
            self._own.commit_ended(executions)

    def _pass_on_traces(self) -> None:
        """Log what the driver's agent, whose threads have no interpreter, has to say."""
        lines, dropped = self._agent.take_traces()
        for is_error, line in lines:
            _log.log(logging.ERROR if is_error else logging.WARNING, "%s", line)
        if dropped:
            _log.warning("%d more warnings of the driver's agent were dropped", dropped)


def _set_properties(context: SparkContext, values: dict[str, str]) -> None:
    for name, value in values.items():
        context.setLocalProperty(name, value)
