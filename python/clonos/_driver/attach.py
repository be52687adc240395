"""``attach``: starts the driver's side of Clonos beside a Spark session."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from clonos import _attached, _core
from clonos._config import (
    ALL_ADDRESSES,
    BATCHES_RETAINED,
    HOST_LABEL,
    NETWORK_TIMEOUT,
    Adopt,
    AgentScope,
    Compression,
    Guarantee,
    OnAmbiguous,
    OnLost,
    SpillPolicy,
    choice,
    parse_adopt,
    parse_checkpoint_dir,
    parse_depth,
    parse_encrypt,
    parse_io_timeout,
    parse_name,
    parse_network_timeout,
    parse_options,
    parse_port,
    parse_ports,
    parse_retained,
    parse_seconds,
    parse_size,
    parse_spill_dir,
    parse_spill_policy,
)
from clonos._driver import spark_private
from clonos._driver.borders import stage_borders
from clonos._driver.kept_threads import KeptThreads
from clonos._driver.local_iterators import LocalIterators
from clonos._driver.metrics import parse_address
from clonos._driver.plans import plan_uses
from clonos._driver.session import Session
from clonos._driver.worker_memory import check_worker_memory
from clonos._temporary import SESSION_FILE, private_folder, write_private
from clonos._versions import check_spark
from clonos._worker.agents import sweep
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from clonos._connect.session import ConnectSession


_log = logging.getLogger("clonos")
_attaching = threading.RLock()


def attach(
    spark: SparkSession,
    *,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    flush_interval: float = 0.0,
    sharing_depth: int | Literal["full"] = 1,
    standbys: int | Literal["full"] = 1,
    memory: int | str = "512MiB",
    disk: int | str = "16GiB",
    spill_policy: SpillPolicy | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    clock_resolution: float = 0.001,
    compression: Compression = "lz4",
    guarantee: Guarantee = "exactly_once",
    agent_scope: AgentScope = "executor",
    on_lost: OnLost = "rollback",
    on_ambiguous: OnAmbiguous = "error",
    io_timeout: float = 10.0,
    driver_host: str | None = None,
    driver_port: int = 0,
    agent_ports: str | int | None = None,
    host_label: str | None = None,
    encrypt: bool | None = None,
    metrics: str | None = None,
    adopt: Adopt | Iterable[Adopt] = (),
) -> Session | ConnectSession:
    """Attach Clonos to a Spark session; on a laptop no setting is needed.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session, or one of Spark Connect: then folders, hosts and ports are the server's,
        and what is not there is refused by name (`docs/connect.md`).
    checkpoint_dir : path or URL, optional
        Folder that driver and executors all reach, or a place in an object store, such as
        ``"s3://bucket/prefix"``. With it logs survive the loss of everything.
    storage_options : mapping of str to str, optional
        What the object store is told: credentials, ``endpoint``, ``region``. Default: what each
        process finds itself, in the environment or from the machine it runs on. Values appear in no
        log, message or ``repr``.
    flush_interval : float
        Seconds from one write of an agent to `checkpoint_dir` to its next. 0 writes as soon as the
        write before is done. More makes fewer and larger objects, and batches wait longer.
    sharing_depth : int or "full"
        Other agents that hold each log before a batch leaves: how many may be lost at once.
    standbys : int or "full"
        Other agents that hold each part of keyed state: how many may be lost at once.
    memory : int or str
        Bytes of logs and keyed state each agent keeps in memory; past it they spill to
        `spill_dir`.
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
    guarantee : {"exactly_once", "at_least_once"}
        ``"at_least_once"`` records nothing, as if there were no ``@causal``: what Spark runs again
        is asked again.
    agent_scope : {"executor", "host"}
        One agent per executor, sharing its fate, or one per host and application.
    on_lost : {"rollback", "at_least_once"}
        When more was lost than is covered: let Spark roll back globally, or go on live.
    on_ambiguous : {"error", "any"}
        When rows with equal arguments and different answers come back in another order.
    io_timeout : float
        Seconds before an agent that does not answer is given up. Agents give each other half.
    driver_host, driver_port : str and int, optional
        Where the driver's agent listens; default: ``spark.driver.host`` (or the bind address), and
        any free port.
    agent_ports : str or int, optional
        Ports that agents listen on, where a firewall lets through no others, such as
        ``"40000-40100"``: one for each executor of a node and some to spare, as an agent goes after
        its executor, and one for the driver unless it has a `driver_port`. Default: any.
    host_label : str, optional
        Name of the node that the driver runs on; default: the environment variable
        ``CLONOS_HOST_LABEL``, else its address. Executors have theirs from that variable only.
        Copies of a log go to other nodes first, and two containers of one node have two addresses.
    encrypt : bool, optional
        Whether what agents send each other, what executors read of Clonos's sources, and spilled
        logs are encrypted. Default: connections if Spark's are (``spark.network.crypto.enabled``,
        ``spark.authenticate.enableSaslEncryption``, ``spark.ssl.enabled``,
        ``spark.ssl.rpc.enabled``), spilled logs if Spark's local files are
        (``spark.io.encryption.enabled``). What is in `checkpoint_dir` never is.
    metrics : str, optional
        Address on which the figures of `Session.stats` are served for Prometheus, such as
        ``"127.0.0.1:9095"``; needs ``clonos[metrics]``.
    adopt : {"udf", "transformWithState"}, or several of them
        What of Spark's makes operators of Clonos until this session or Spark's is stopped, so that
        existing programs run unchanged. ``"udf"``: scalar ``udf``, ``pandas_udf`` and
        ``arrow_udf``, and what ``spark.udf.register`` is given, are made causal functions, as by
        `causal`. ``"transformWithState"``: so that, and ``transformWithStateInPandas``, are
        `transform_with_state`. What was made before stays plain.

    Returns
    -------
    Session or ConnectSession
        The one there is, if this Spark session, or another of its application, is attached with
        the same settings: a notebook may run the cell again, and what was built before goes on.
        Other settings stop it and begin another, and columns that belong to the old one fail.

    Raises
    ------
    ConfigError
        If a setting is out of range, `spark` is no session or was stopped, the session there is has
        an epoch open and would be stopped, Spark is of a version that Clonos does not know, or a
        Spark Connect server has no Clonos, or takes no Java function.

    Notes
    -----
    Unless you set it, ``spark.sql.execution.arrow.maxBytesPerBatch`` becomes 4 MiB while the
    session is attached: Spark's 64 MiB make it hand over frames in batches so large that neither
    side works while the other does.

    Examples
    --------
    >>> session = clonos.attach(spark, sharing_depth=1)  # doctest: +SKIP

    A program of Spark's own, which attaches first and then is as it was:

    >>> session = clonos.attach(spark, adopt=("udf", "transformWithState"))  # doctest: +SKIP
    >>> from pyspark.sql.functions import udf
    >>> @udf("double")  # doctest: +SKIP
    ... def price(symbol):
    ...     return requests.get(URL, params={"symbol": symbol}).json()["price"]
    """
    asked = {name: value for name, value in locals().items() if name != "spark"}
    asked["adopt"] = parse_adopt(adopt)
    asked["storage_options"] = parse_options(storage_options)
    _check_session(spark)
    check_spark(spark.version)
    attached = _classic if spark_private.is_classic(spark) else _client
    # Whoever comes second has the session that the first has made.
    with _attaching:
        return attached(spark, asked)


def _classic(spark: SparkSession, asked: dict[str, Any]) -> Session:
    """Attach a session that has a JVM: as `attach`, whose checked arguments `asked` are."""
    context = spark.sparkContext
    settings = context.getConf()
    local = _is_local(context.master or "")
    bind_host, reached_as = _driver_hosts(settings, asked["driver_host"], local)
    before = _attached.latest()
    if isinstance(before, Session) and _is_same(before, spark, asked):
        _join(before, spark, bind_host, reached_as)
        return before
    chosen = _chosen(asked, settings, local=local)
    if not local and (warning := check_worker_memory(settings, chosen["memory_bytes"])):
        _log.warning("%s", warning)
    _check_own(asked)
    # A setting of the session, which a program may change before it starts a query.
    chosen["state_epochs"] = _batches_retained(spark)
    # Only now: a setting that is refused stops nothing, nor does a folder or store that cannot be
    # written to. Whether a port can be had is seen when the session before has given back its own.
    _attached.check_replaceable()
    if before is not None:
        if chosen["checkpoint_dir"] is not None:
            patience = chosen["io_timeout_ms"] / 1000
            store = chosen["checkpoint_dir"], chosen["storage_options"]
            _core.try_checkpoint(*store, patience, encrypt=chosen["encrypt"])
        before.stop()
    with contextlib.ExitStack() as undo:
        session = _begun(spark, asked, chosen, (bind_host, reached_as), undo)
        undo.pop_all()
    return session


def _begun(
    spark: SparkSession,
    asked: dict[str, Any],
    chosen: dict[str, Any],
    hosts: tuple[str, str],
    undo: contextlib.ExitStack,
) -> Session:
    """Begin a session; `undo` has what takes it back if that fails halfway."""
    (bind_host, reached_as), context = hosts, spark.sparkContext
    folder = _session_folder(context.applicationId)
    undo.callback(shutil.rmtree, folder, ignore_errors=True)
    config = _core.SessionConfig(
        app_id=_application(context.applicationId),
        secret=os.urandom(32),
        driver_addr="",
        driver_socket=str(folder / "agent.sock"),
        **chosen,
    )
    config = config.with_driver_addr(reached_as)

    iterators = LocalIterators(spark)
    undo.callback(iterators.end)
    bind = (bind_host, asked["driver_port"])
    threads = KeptThreads()
    undo.callback(threads.end)
    own = _labelled(config, asked["host_label"])
    agent = _start_agent(spark, own, bind, iterators, threads)
    undo.callback(agent.stop)
    advertised = config.with_driver_addr(agent.addr)
    write_private(folder / SESSION_FILE, advertised.to_bytes())
    session = Session(spark, agent, advertised, folder, asked, iterators=iterators, threads=threads)
    undo.callback(session.stop)
    atexit.register(session.stop)
    if asked["metrics"] is not None:
        session.serve_metrics(asked["metrics"])
    register_formats(spark, advertised, bind_host, reached_as)
    _attached.set_current(session)
    session.adopt()
    return session


def _check_own(asked: dict[str, Any]) -> None:
    """Refuse what is out of range of the arguments of `attach` that the core is not told of."""
    parse_port("driver_port", asked["driver_port"])
    parse_name("driver_host", asked["driver_host"])
    # Empty: none, whatever the environment says.
    if asked["host_label"] != "":
        parse_name("host_label", asked["host_label"])
    if asked["metrics"] is not None:
        parse_address(asked["metrics"])


def _check_session(spark: object) -> None:
    if not hasattr(type(spark), "readStream"):
        message = f"spark={spark!r} is no Spark session: give what SparkSession.builder made"
        raise ConfigError(message, "CONFIG")
    session = cast("SparkSession", spark)
    if spark_private.is_classic(session):
        stopped = not spark_private.is_running(session)
    else:
        stopped = getattr(session, "is_stopped", False)
    if stopped:
        raise ConfigError("spark is a session that was stopped: make another", "CONFIG")


def _is_same(before: Session, spark: SparkSession, asked: dict[str, Any]) -> bool:
    """Whether to attach `spark` so would begin another one like `before`.

    `spark` may be any session of its application, as ``newSession`` makes them.
    """
    is_ours = before.spark.sparkContext is spark.sparkContext
    return is_ours and before.asked == asked and before.is_active


def _join(session: Session, spark: SparkSession, bind_host: str, reached_as: str) -> None:
    """Let `spark` have what the attached session of its application has."""
    if spark not in session.joined:
        register_formats(spark, session.config, bind_host, reached_as)
        session.join(spark)


def _client(spark: SparkSession, asked: dict[str, Any]) -> ConnectSession:
    from clonos._connect.session import attach_client

    client = attach_client(spark, asked)
    # Receivers run on the driver's host, as that of a classic program.
    register_formats(spark, client.config, client.config.driver_addr.rpartition(":")[0])
    return client


def _chosen(asked: dict[str, Any], settings: Any, *, local: bool) -> dict[str, Any]:
    """Return what the core is told of the arguments of `attach`, each of which is checked."""
    return {
        "local": local,
        "guarantee": choice("guarantee", asked["guarantee"], Guarantee),
        "sharing_depth": parse_depth(asked["sharing_depth"]),
        "standbys": parse_depth(asked["standbys"], "standbys"),
        "memory_bytes": parse_size("memory", asked["memory"]),
        "disk_bytes": parse_size("disk", asked["disk"]),
        "spill_policy": parse_spill_policy(asked["spill_policy"], asked["agent_scope"]),
        "clock_resolution_ns": parse_seconds("clock_resolution", asked["clock_resolution"], 10**9),
        "compress_frames": choice("compression", asked["compression"], Compression) == "lz4",
        "spill_dir": parse_spill_dir(asked["spill_dir"]),
        "checkpoint_dir": parse_checkpoint_dir(asked["checkpoint_dir"]),
        "storage_options": parse_options(asked["storage_options"]),
        "flush_interval_ms": parse_seconds("flush_interval", asked["flush_interval"], 1000),
        "agent_scope": choice("agent_scope", asked["agent_scope"], AgentScope),
        "on_lost": choice("on_lost", asked["on_lost"], OnLost),
        "on_ambiguous": choice("on_ambiguous", asked["on_ambiguous"], OnAmbiguous),
        "agent_ports": parse_ports(asked["agent_ports"]),
        "io_timeout_ms": parse_io_timeout(asked["io_timeout"]),
        "network_timeout_ms": parse_network_timeout(settings.get(NETWORK_TIMEOUT, "120s")),
        **parse_encrypt(asked["encrypt"], settings),
    }


def _is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def _labelled(config: _core.SessionConfig, label: str | None) -> _core.SessionConfig:
    """Of the driver's node alone: executors are sent the configuration without it."""
    return config.with_host_label(os.environ.get(HOST_LABEL, "") if label is None else label)


def _start_agent(
    spark: SparkSession,
    config: _core.SessionConfig,
    bind: tuple[str, int],
    iterators: LocalIterators,
    threads: KeptThreads,
) -> _core.Agent:
    stages = spark_private.stages(spark.sparkContext)
    was_lost = spark_private.lost_outputs(spark.sparkContext)
    clocks = spark_private.clocks(spark)
    next_batches = spark_private.next_batches(spark)
    uses, borders = plan_uses(spark, iterators.query), stage_borders(spark, iterators.query)

    def stage_of(stage: int, rdd: int | None, of_stream: bool) -> spark_private.Stage | None:
        # Of the first of its tasks, before anything is asked or decided for it. It may be of a
        # stream of a session that nobody listens to yet.
        session = _attached.current()
        if of_stream and session is not None:
            session.watch_streams()
        known = stages(stage)
        if known is None or rdd is None:
            return known
        partitions = None if session is None else session.partitions_of_rdd(rdd)
        return None if partitions is None else (partitions, *known[1:])

    return _core.Agent.start(
        config,
        *bind,
        threads.runs(stage_of),
        threads.runs(was_lost),
        threads.runs(uses),
        threads.runs(borders),
        threads.runs(clocks),
        threads.runs(next_batches),
    )


def register_formats(
    spark: SparkSession,
    config: _core.SessionConfig,
    bind_host: str = "127.0.0.1",
    reached_as: str = "",
) -> None:
    """Register the sources and sinks of Clonos with a session, with its settings as defaults."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.datasource import DataSource

    from clonos._loops import loop_of
    from clonos._sinks import data_sources
    from clonos._sources import HttpSource, SocketSource, with_defaults
    from clonos._sources.first_batch import FirstBatchSource
    from clonos._sources.state import source_of
    from clonos._sources.timers import timers_of

    defaults = {"bindHost": bind_host, "encrypt": str(config.encrypt).lower()}
    if reached_as:
        defaults["reachedAs"] = reached_as
    if any(config.agent_ports):
        defaults["ports"] = "{}-{}".format(*config.agent_ports)
    session = None
    if config.checkpoint_dir is not None:
        defaults["logDir"] = config.checkpoint_dir
        session = config.to_bytes() if "://" in config.checkpoint_dir else None
    sources = [with_defaults(kind, session, **defaults) for kind in (SocketSource, HttpSource)]
    loop = loop_of(_batches_retained(spark))
    own: list[type[DataSource]] = [source_of(config), FirstBatchSource, timers_of(config), loop]
    formats: list[type[DataSource]] = [*sources, *own, *data_sources()]
    # Whether a name is taken Spark asks the session that it takes for the current one.
    current = spark_private.active if spark_private.is_classic(spark) else contextlib.nullcontext
    with current(spark):
        for source in formats:
            try:
                spark.dataSource.register(source)
            except AnalysisException as error:
                # From the class path, where that has them too.
                if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                    raise


def _batches_retained(spark: SparkSession) -> int:
    return parse_retained(spark.conf.get(BATCHES_RETAINED, "100") or "100")


def _driver_hosts(settings: Any, driver_host: str | None, local: bool) -> tuple[str, str]:
    """Host to bind to, and host under which executors reach it (empty: the same)."""
    if local:
        return "127.0.0.1", ""
    reached_as = settings.get("spark.driver.host", "127.0.0.1")
    if driver_host is not None:
        # Where all of this machine's addresses are meant, executors need one of them.
        return driver_host, reached_as if driver_host in ALL_ADDRESSES else ""
    bind_host = settings.get("spark.driver.bindAddress", reached_as)
    return bind_host, "" if bind_host == reached_as else reached_as


def _application(app_id: str) -> str:
    # A driver that YARN starts again has the application id of the one before, and counts stages
    # and executions anew.
    return f"{app_id}-{os.urandom(4).hex()}"


def _session_folder(app_id: str) -> Path:
    name = hashlib.sha256(f"{app_id}/driver/{os.getpid()}".encode()).hexdigest()[:16]
    folder = private_folder(name)
    # Of sessions whose drivers were killed.
    sweep(folder.parent)
    return folder
