"""``attach`` of a Spark Connect session: what a client has in the place of `clonos.Session`."""

from __future__ import annotations

import base64
import contextlib
import functools
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self

from pyspark.errors import PySparkException

import clonos
from clonos import _attached, _core, errors
from clonos._connect.asking import HostSource, ask
from clonos._connect.batches import ServerBatch
from clonos._connect.gateway import open_gateway
from clonos._connect.names import know_registered, register_again
from clonos._connect.requests import HostProcess, raise_told
from clonos._connect.tags import tagged
from clonos._epochs import BATCH_BYTES, BATCH_BYTES_SETTING, STAMP_BITS, check_epoch_name
from clonos._operators.foreach_batch import BatchFunction
from clonos._stats import Stats
from clonos._versions import minor_version
from clonos._worker.place import epoch_tag
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("clonos")
# What tells a task of which batch it is, and the functions of its stream where they run.
LEAST_VERSION = (4, 3)
START_SECONDS = 120.0
POLL_SECONDS = 0.1
RETRIES = 3


def attach_client(spark: SparkSession, asked: dict[str, Any]) -> ConnectSession:
    """Attach to the server behind a session of Spark Connect.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A session of Spark Connect.
    asked : dict
        Settings, by the names that `clonos.attach` gives them.

    Raises
    ------
    ConfigError
        If a setting is out of range or cannot be had there, or the server takes no jar, plans
        Python data sources elsewhere, has no Clonos or another version, or is older than 4.3.
    """
    if minor_version(spark.version) < LEAST_VERSION:
        message = f"over Spark Connect Clonos needs Spark 4.3, and the server has {spark.version}"
        raise ConfigError(message, "CONFIG")
    if asked["adopt"]:
        refuse("attach(adopt=...)", "write @causal above each function")
    before = _attached.latest()
    same = isinstance(before, ConnectSession) and before.spark is spark and before.asked == asked
    if isinstance(before, ConnectSession) and same and before.is_active:
        if before.is_answered():
            return before
        before.stop()
    _attached.check_replaceable()
    host = _started(spark, _settings(asked))
    # Only now: a setting that is refused stops nothing.
    if before is not None:
        before.stop()
    session = ConnectSession(spark, host, asked)
    _attached.set_current(session)
    know_registered()
    # Files of pipelines may register nothing, and have not.
    with contextlib.suppress(PySparkException):
        register_again(spark)
    return session


def refuse(what: str, instead: str) -> NoReturn:
    """Raise `ConfigError` for what a client of Spark Connect cannot have."""
    message = f"{what} is not there over Spark Connect: {instead}, or use a classic session"
    raise ConfigError(message, "CONFIG")


def _settings(asked: dict[str, Any]) -> dict[str, Any]:
    # As JSON has them: the host process is started with them.
    settings = {name: value for name, value in asked.items() if name != "adopt"}
    for name in ("checkpoint_dir", "spill_dir"):
        if settings[name] is not None:
            settings[name] = os.fspath(settings[name])
    settings["storage_options"] = dict(settings["storage_options"] or {}) or None
    return settings


def _started(spark: SparkSession, settings: dict[str, Any]) -> HostProcess:
    """Have a host process run."""
    request = {"settings": settings, "version": clonos.__version__, "process": None}
    try:
        spark.dataSource.register(HostSource)
        told = ask(spark, request)
    except PySparkException as error:
        message = (
            f"no process of Clonos could be started beside the Spark driver: {error}. Install "
            f"clonos {clonos.__version__} where the Spark Connect server runs, and on all executors"
        )
        raise ConfigError(message, "CONFIG") from error
    deadline = time.monotonic() + START_SECONDS
    while told.get("state") != "ready":
        if "error" in told:
            raise_told(told)
        if time.monotonic() > deadline:
            message = f"the process beside the Spark driver is not ready: see {told['folder']}"
            raise errors.AgentTimeout(message, "TIMEOUT")
        if request["process"] != told["process"]:
            # Each process is let in anew.
            _open(spark, told["folder"])
            request["process"] = told["process"]
        time.sleep(POLL_SECONDS)
        told = ask(spark, request)
    return HostProcess(told["folder"], told["process"])


def _open(spark: SparkSession, folder: str) -> None:
    try:
        answered = open_gateway(spark, folder)
    except PySparkException as error:
        message = f"this server takes no Java function, by which Clonos reaches its driver: {error}"
        raise ConfigError(message, "CONFIG") from error
    if not answered.isdigit():
        message = f"the driver of this server is not reached: {answered}"
        raise ConfigError(message, "CONFIG")


def _asked(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    """Ask again if Spark fails: a request is one, however often it comes."""
    for _ in range(RETRIES):
        with contextlib.suppress(PySparkException):
            return ask(spark, request)
        time.sleep(POLL_SECONDS)
    return ask(spark, request)


class ConnectSession:
    """A session of Spark Connect with causal logging; made by `clonos.attach`.

    The driver's agent is a process beside Spark's driver, which all clients with equal settings
    share, and which ends with the server.

    Attributes
    ----------
    spark : pyspark.sql.SparkSession
        The session attached to.
    config : _core.SessionConfig
        What tasks are told; its ``repr`` leaves the secret out.
    """

    def __init__(self, spark: SparkSession, host: HostProcess, asked: dict[str, Any]) -> None:
        self.spark = spark
        #: Settings that `attach` was called with.
        self.asked = asked
        self._host = host
        self._is_stopped = False
        self._lock = threading.Lock()
        # How many blocks are in each epoch, the run of each, and those of which one has raised.
        self._epochs: Counter[str] = Counter()
        self._stamps: dict[str, int] = {}
        self._raised: set[str] = set()
        self.config = _core.SessionConfig.from_bytes(base64.b64decode(self._ask("config")))
        self._smaller_batches = BATCH_BYTES_SETTING not in dict(spark.conf.getAll)
        if self._smaller_batches:
            # It is for speed alone, and files of pipelines may not set anything.
            with contextlib.suppress(PySparkException):
                spark.conf.set(BATCH_BYTES_SETTING, BATCH_BYTES)

    def __repr__(self) -> str:
        state = "stopped" if not self.is_active else f"driver agent at {self.config.driver_addr}"
        return f"<clonos session over Spark Connect: {state}>"

    @property
    def is_active(self) -> bool:
        """Whether neither this session nor the Spark session under it was stopped."""
        spark: Any = self.spark
        return not self._is_stopped and not spark.is_stopped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def _ask(self, what: str, *arguments: Any) -> Any:
        """Ask the host process, for as long as it takes."""
        return self._host.ask(functools.partial(_asked, self.spark), what, *arguments)

    def is_answered(self) -> bool:
        """Whether the process beside the driver is still there."""
        try:
            self._ask("config")
        except errors.AgentError:
            return False
        return True

    @contextlib.contextmanager
    def epoch(self, name: str) -> Iterator[None]:
        """Make everything this thread runs on Spark one epoch, called `name`.

        As `clonos.Session.epoch`. Spark is told by a tag of this thread, which threads made with
        ``pyspark.InheritableThread(..., session=spark)`` have, too. A client that dies commits
        nothing: whoever begins the name again, in whichever client, goes on with what is recorded.

        Parameters
        ----------
        name : str
            Names the work, such as ``"scores-2026-11-20"``: not empty, at most 200 characters.

        Raises
        ------
        ConfigError
            If the name cannot be one, the session was stopped, this thread is in another epoch, or,
            at the end, another client has begun the name anew.
        InconsistentEpoch
            At the end, if tasks of one operator used different logs of the one before it. The
            epoch is not committed then.
        """
        check_epoch_name(name)
        if not self.is_active:
            message = f"no epoch can begin in {self!r}: use what clonos.attach(spark) returned last"
            raise ConfigError(message, "CONFIG")
        stamp = self._enter(name)
        try:
            with tagged(self.spark, epoch_tag(name, stamp)):
                yield
        except BaseException:
            self._leave(name, has_ended=False)
            raise
        self._leave(name, has_ended=True)

    def _enter(self, name: str) -> int:
        others = [tag for tag in self.spark.getTags() if tag.startswith(epoch_tag())]
        with self._lock:
            if any(tag != epoch_tag(name, self._stamps.get(name, 0)) for tag in others):
                refuse("an epoch inside of another one", "leave that first")
            if not self._epochs[name]:
                stamp = secrets.randbits(STAMP_BITS) | 1
                self._ask("begin", name, stamp)
                self._stamps[name] = stamp
            self._epochs[name] += 1
            return self._stamps[name]

    def _leave(self, name: str, *, has_ended: bool) -> None:
        with self._lock:
            self._epochs[name] -= 1
            if not has_ended:
                self._raised.add(name)
            if self._epochs[name]:
                return
            stamp, raised = self._stamps.pop(name), name in self._raised
            self._raised.discard(name)
            if raised and has_ended:
                _log.warning("epoch %s was not committed, as one of its blocks raised", name)
            # What the block raised is the reason; a server that is gone is none.
            quiet = contextlib.suppress(Exception) if raised else contextlib.nullcontext()
            with quiet:
                self._ask("leave", name, stamp, not raised)

    def open_epochs(self) -> list[str]:
        """Names of the epochs that are open in some thread of this client."""
        with self._lock:
            return sorted(name for name, blocks in self._epochs.items() if blocks)

    def foreach_batch(self, fn: BatchFunction) -> BatchFunction:
        """As `clonos.Session.foreach_batch`; the function runs on the server.

        Causal functions in it are recorded, as the causal services are, where it is wrapped. It is
        pickled, and refers to no session: the batch has one, ``batch.sparkSession``.
        """
        return ServerBatch(self._host, self.config, fn)

    def check(self, query: str, epoch: int | str) -> None:
        """As `clonos.Session.check`."""
        self._ask("check", query, epoch)

    def commit(self, query: str, epoch: int | str) -> None:
        """As `clonos.Session.commit`."""
        self._ask("commit", query, epoch)

    def savepoint(self, query: StreamingQuery | str, path: str | os.PathLike[str]) -> None:
        """As `clonos.Session.savepoint`; `path` is the driver's, who writes there."""
        of = query if isinstance(query, str) else str(query.id)
        self._ask("savepoint", of, os.fspath(path))

    def stats(self) -> Stats:
        """What every agent holds, what each operator did, and what was not done again."""
        return Stats.parse(self._ask("stats"))

    def stop(self) -> None:
        """Forget the session. The process beside the driver goes on, for other clients."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if _attached.latest() is self:
            _attached.set_current(None)
        if self._smaller_batches:
            with contextlib.suppress(Exception):
                self.spark.conf.unset(BATCH_BYTES_SETTING)

    def watch(self, spark: SparkSession) -> None:
        """Nothing: the host process listens to the streams of all sessions."""

    def watch_streams(self) -> None:
        """Nothing, as `watch`."""

    def rdd_is_made(self, number: int, rdd: Any, use: Any) -> None:
        """Nothing: here there are no RDDs."""

    def partitions_of_rdd(self, number: int) -> None:
        """Nothing, as `rdd_is_made`."""

    def mark_rows(self, function: Any, *, takes_marks: bool) -> None:
        """Nothing: rows are told apart by their arguments and ``row_key=`` alone."""
