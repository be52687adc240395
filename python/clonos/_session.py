"""``attach``: the driver's side of Clonos, and what makes epochs begin and end."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from clonos import _core
from clonos._config import (
    one_of,
    parse_depth,
    parse_resolution,
    parse_size,
    parse_spill_policy,
)
from clonos._spark import worker
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_current: Session | None = None
_lock = threading.Lock()
EXECUTION_POLL_SECONDS = 1.0
BATCH_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
BATCH_BYTES = "4MB"
EPOCH_NAME_MAX = 200


def current_config() -> _core.SessionConfig | None:
    """Configuration of the attached session, if there is one."""
    return None if _current is None else _current.config


def current_query() -> str:
    """Id of the streaming query whose ``foreachBatch`` this thread runs, or an empty string."""
    if _current is None:
        return ""
    return _current.spark.sparkContext.getLocalProperty(worker.QUERY_PROPERTY) or ""


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
        self, spark: SparkSession, agent: _core.Agent, config: _core.SessionConfig, folder: Path
    ) -> None:
        self.spark = spark
        self.config = config
        self._agent = agent
        self._folder = folder
        self._stopped = threading.Event()
        self._smaller_batches = not spark.conf._jconf.contains(BATCH_BYTES_SETTING)
        if self._smaller_batches:
            spark.conf.set(BATCH_BYTES_SETTING, BATCH_BYTES)
        self._listener = _progress_listener(self)
        spark.streams.addListener(self._listener)
        self._watcher = threading.Thread(
            target=self._watch_executions, name="clonos-executions", daemon=True
        )
        self._watcher.start()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped.is_set() else f"driver agent at {self._agent.addr}"
        return f"<clonos session of {self.config.app_id}: {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def epoch(self, name: str) -> Iterator[None]:
        """Make everything this thread runs on Spark one epoch, called `name`.

        When the block ends well the epoch is committed and its log dropped. If it raises, or the
        driver dies, the log stays: run it again under the same name (with ``checkpoint_dir``, in
        another process too), and it goes on with what was recorded.

        Parameters
        ----------
        name : str
            Names the work, such as ``"scores-2026-11-20"``: not empty, at most 200 characters.

        Raises
        ------
        ConfigError
            If the name cannot be one.
        InconsistentEpoch
            At the end, if tasks of one operator used different logs of the one before it. The
            epoch is not committed then.
        """
        if not name or len(name) > EPOCH_NAME_MAX:
            message = f"epoch name {name!r} must have 1 to {EPOCH_NAME_MAX} characters"
            raise ConfigError(message, "CONFIG")
        context = self.spark.sparkContext
        before = context.getLocalProperty(worker.EPOCH_PROPERTY)
        context.setLocalProperty(worker.EPOCH_PROPERTY, name)
        try:
            yield
        finally:
            context.setLocalProperty(worker.EPOCH_PROPERTY, before or "")
        self.check(worker.BATCH_QUERY, name)
        self._agent.commit_epoch(worker.BATCH_QUERY, name)

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
        from clonos._spark.foreach_batch import causal_batch_function

        return causal_batch_function(self, fn)

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

    def stats(self) -> dict[str, Any]:
        """What every agent holds, as ``clonos inspect`` shows it: agents, and logs by task."""
        return json.loads(self._agent.stats())  # type: ignore[no-any-return]

    def stop(self) -> None:
        """Stop the driver's agent; executors' agents go with it. Spark itself goes on."""
        global _current
        if self._stopped.is_set():
            return
        self._stopped.set()
        with _lock:
            if _current is self:
                _current = None
        with contextlib.suppress(Exception):
            self.spark.streams.removeListener(self._listener)
            if self._smaller_batches:
                self.spark.conf.unset(BATCH_BYTES_SETTING)
        self._agent.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch_executions(self) -> None:
        """Commit the epochs of SQL executions that have ended and stand in no ``epoch`` scope."""
        query = worker.application_query(self.config.app_id)
        while not self._stopped.wait(EXECUTION_POLL_SECONDS):
            for epoch_query, epoch in self._agent.live_epochs():
                if epoch_query != query or not str(epoch).startswith("sql-"):
                    continue
                # Spark may be shutting down under us; then there is nothing left to commit.
                with contextlib.suppress(Exception):
                    if self._execution_ended(int(str(epoch).removeprefix("sql-"))):
                        self._agent.commit_epoch(query, epoch)

    def _execution_ended(self, execution: int) -> bool:
        jspark: Any = self.spark._jsparkSession
        found = jspark.sharedState().statusStore().execution(execution)
        return bool(found.isDefined() and found.get().completionTime().isDefined())


def _progress_listener(session: Session) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class CommitListener(StreamingQueryListener):
        """Spark reports progress of a batch after it has committed it."""

        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            with contextlib.suppress(Exception):
                session.commit(str(event.progress.id), int(event.progress.batchId))

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    return CommitListener()


def attach(
    spark: SparkSession,
    *,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    sharing_depth: int | str = 1,
    memory: int | str = "512MiB",
    disk: int | str = "16GiB",
    spill_policy: str | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    clock_resolution: float = 0.001,
    compression: str = "lz4",
    guarantee: str = "exactly_once",
    agent_scope: str = "executor",
    on_lost: str = "rollback",
    on_ambiguous: str = "error",
    io_timeout: float = 10.0,
    driver_host: str | None = None,
    driver_port: int = 0,
) -> Session:
    """Attach Clonos to a Spark session; on a laptop no setting is needed.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session (not Spark Connect: agents are started next to the driver).
    checkpoint_dir : path, optional
        Folder that driver and executors all reach. With it logs survive the loss of everything.
    sharing_depth : int or "full"
        Other agents that hold each log before a batch leaves: how many may be lost at once.
    memory : int or str
        Bytes of logs each agent keeps in memory; past it they spill to `spill_dir`.
    disk : int or str
        Bytes each agent may spill; past it writers are slowed, then refused.
    spill_policy : {"availability", "eager", "epoch", "off"}, optional
        When the frames of an `exchange` that are kept to be sent again go to disk: past half of
        `memory`, at once, or when the next epoch begins. ``"off"`` keeps none: a task that Spark
        runs again is replayed from its determinants. Default: ``"availability"`` where agents
        outlive executors (``agent_scope="host"``), else ``"off"``: the frames would be lost
        together with the shuffle files that they stand in for.
    spill_dir : path, optional
        Folder for spilled logs; default: the system's temporary folder.
    clock_resolution : float
        Seconds between two different readings of `clonos.time`. Equal readings in a row cost no
        space, which matters where determinants ride in frames; 0 records each as it is.
    compression : {"lz4", "none"}
        Of the frames of an `exchange`, column by column, before Spark has them.
    guarantee : {"exactly_once", "at_least_once", "at_most_once"}
        Only ``"exactly_once"`` records determinants.
    agent_scope : {"executor", "host"}
        One agent per executor, sharing its fate, or one per host and application.
    on_lost : {"rollback", "at_least_once"}
        When more was lost than is covered: let Spark roll back globally, or go on live.
    on_ambiguous : {"error", "any"}
        When rows with equal arguments and different answers come back in another order.
    io_timeout : float
        Seconds before an agent that does not answer is given up.
    driver_host, driver_port : str and int, optional
        Where the driver's agent listens; default: ``spark.driver.host`` (or the bind address), and
        any free port.

    Returns
    -------
    Session

    Raises
    ------
    ConfigError
        If a setting is out of range, or the session is a Spark Connect one.

    Notes
    -----
    Unless you set it, ``spark.sql.execution.arrow.maxBytesPerBatch`` becomes 4 MiB while the
    session is attached: Spark's 64 MiB make it hand over frames in batches so large that neither
    side works while the other does.

    Examples
    --------
    >>> session = clonos.attach(spark, sharing_depth=1)  # doctest: +SKIP
    """
    global _current
    if not hasattr(spark, "_jsparkSession"):
        message = (
            "clonos.attach needs a classic Spark session; Spark Connect has no executors' side"
        )
        raise ConfigError(message, "CONFIG")
    context = spark.sparkContext
    settings = context.getConf()
    master = context.master or ""
    local = master.startswith("local") and not master.startswith("local-cluster")
    if _current is not None:
        _current.stop()
    folder = _session_folder(context.applicationId)
    config = _core.SessionConfig(
        app_id=context.applicationId,
        secret=os.urandom(32),
        driver_addr="",
        driver_socket=str(folder / "agent.sock"),
        local=local,
        guarantee=one_of("guarantee", guarantee, ("exactly_once", "at_least_once", "at_most_once")),
        sharing_depth=parse_depth(sharing_depth),
        memory_bytes=parse_size("memory", memory),
        disk_bytes=parse_size("disk", disk),
        spill_policy=parse_spill_policy(spill_policy, agent_scope),
        clock_resolution_ns=parse_resolution(clock_resolution),
        compress_frames=one_of("compression", compression, ("none", "lz4")) == "lz4",
        spill_dir=None if spill_dir is None else os.fspath(spill_dir),
        checkpoint_dir=None if checkpoint_dir is None else _folder_of(checkpoint_dir),
        agent_scope=one_of("agent_scope", agent_scope, ("executor", "host")),
        on_lost=one_of("on_lost", on_lost, ("rollback", "at_least_once")),
        on_ambiguous=one_of("on_ambiguous", on_ambiguous, ("error", "any")),
        io_timeout_ms=int(io_timeout * 1000),
    )
    bind_host, reached_as = _driver_hosts(settings, driver_host, local)
    config = config.with_driver_addr(reached_as)

    agent = _core.Agent.start(config, bind_host, driver_port, _stage_tasks(context))
    advertised = config.with_driver_addr(agent.addr)
    _write_private(folder / "session", advertised.to_bytes())
    session = Session(spark, agent, advertised, folder)
    register_formats(spark, advertised, "127.0.0.1" if local else reached_as or bind_host)
    with _lock:
        _current = session
    atexit.register(session.stop)
    return session


def register_formats(
    spark: SparkSession, config: _core.SessionConfig, bind_host: str = "127.0.0.1"
) -> None:
    """Register the sources and sinks of Clonos with a session, with its settings as defaults."""
    from clonos._sinks import data_sources
    from clonos._sources import HttpSource, SocketSource, with_defaults

    defaults = {"bindHost": bind_host}
    if config.checkpoint_dir is not None:
        defaults["logDir"] = config.checkpoint_dir
    for source in (SocketSource, HttpSource):
        spark.dataSource.register(with_defaults(source, **defaults))
    for sink in data_sources():
        spark.dataSource.register(sink)


def _stage_tasks(context: SparkContext) -> Callable[[int], int | None]:
    """Return what tells how many partitions a stage has.

    Not the status tracker's number of tasks: that counts those of a stage's last attempt, which
    are only the missing ones after a failure.
    """
    stages: Any = context._jsc.sc().dagScheduler().stageIdToStage()

    def stage_tasks(stage: int) -> int | None:
        found = stages.get(stage)
        return int(found.get().numPartitions()) if found.isDefined() else None

    return stage_tasks


def _driver_hosts(settings: Any, driver_host: str | None, local: bool) -> tuple[str, str]:
    """Host to bind to, and host under which executors reach it (empty: the same)."""
    if local:
        return "127.0.0.1", ""
    if driver_host is not None:
        return driver_host, ""
    reached_as = settings.get("spark.driver.host", "127.0.0.1")
    bind_host = settings.get("spark.driver.bindAddress", reached_as)
    return bind_host, "" if bind_host == reached_as else reached_as


def _folder_of(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path).removeprefix("file://").removeprefix("file:")
    if "://" in text:
        message = (
            f"checkpoint_dir={text!r} must be a folder of a file system that driver and executors "
            "mount; object stores cannot append"
        )
        raise ConfigError(message, "CONFIG")
    return str(Path(text).absolute())


def _session_folder(app_id: str) -> Path:
    name = hashlib.sha256(f"{app_id}/driver/{os.getpid()}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"clonos-{os.getuid()}" / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _write_private(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
