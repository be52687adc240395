"""What ``clonos doctor --master`` looks at: the hosts of a cluster, and a session there."""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clonos._config import DISK_ENCRYPTED, NETWORK_ENCRYPTED, switched_on
from clonos._driver import spark_private
from clonos._worker.lost import CHECKSUM
from clonos.cli.finding import Finding, files

_ROWS = 1000
# Tasks for each slot that Spark says there is, so that each executor gets some.
TASKS_PER_SLOT = 2
_USE = "a causal UDF on the executors"
# How often all are asked who have not all answered.
_ROUNDS = 4
_CLOCKS_APART = 1.0
# Hosts whose names are told where there are many.
_NAMED = 3


@dataclass(frozen=True)
class Asked:
    """What the command was given: a master and, if they are meant, a folder or store and ports."""

    master: str
    checkpoint_dir: str | None
    options: dict[str, str]
    agent_ports: str | None
    wait_s: float

    @property
    def is_client(self) -> bool:
        """Whether the master is a server of Spark Connect."""
        return self.master.startswith("sc:")


def checks(asked: Asked) -> Iterator[Finding]:
    """Start Spark and look around there; whatever fails is a finding."""
    from clonos.cli.client import in_client

    try:
        yield from (in_client if asked.is_client else _in_session)(asked)
    except Exception as error:  # noqa: BLE001, whatever fails is the finding
        yield Finding(False, f"Spark on {asked.master}: {reason(error)}", "see the output above")


def _in_session(asked: Asked) -> Iterator[Finding]:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(asked.master).appName("clonos doctor").getOrCreate()
    try:
        yield from settings(spark, spark.sparkContext.getConf(), asked)
        if (yield from _hosts(spark.sparkContext, asked)):
            yield _round_trip(spark, asked.agent_ports)
    finally:
        # It may be gone already, which is what was found.
        with suppress(Exception):
            spark.stop()


def settings(spark: Any, of_context: Any, asked: Asked) -> Iterator[Finding]:
    """What Spark's own settings mean here; `of_context` has those that a context was made with."""
    try:
        # Given no default, Spark tells its own.
        is_on = spark.conf.get(CHECKSUM) == "true"
    except Exception:  # noqa: BLE001, a Spark that has no such setting
        is_on = False
    yield Finding(
        is_on,
        f"Spark's shuffle checksum is {'on' if is_on else 'off'}",
        f"set {CHECKSUM}=true, so that Spark notices when more was lost than Clonos covers",
    )
    network, disk = (
        switched_on(of_context, names) for names in (NETWORK_ENCRYPTED, DISK_ENCRYPTED)
    )
    told = {"what agents send each other": network, "what they spill": disk}
    if network or disk:
        yield Finding(
            True,
            f"Spark encrypts ({', '.join(network + disk)}), and Clonos does too: "
            + " and ".join(what for what, names in told.items() if names),
            "what is in checkpoint_dir is not encrypted: keep the folder to those who may read it",
            known=asked.checkpoint_dir is not None,
        )


# -- hosts ---------------------------------------------------------------------------------------


def _hosts(context: Any, asked: Asked) -> Generator[Finding, None, bool]:
    """What the executors say, by what is not well: there may be a thousand. Whether any did."""
    folder = asked.checkpoint_dir
    if folder is not None and "://" not in folder:
        folder = str(Path(folder).resolve())
    late = threading.Event()
    try:
        with _marked(folder) as marker, _bounded(context, asked.wait_s, late):
            told = _answers(
                context, functools.partial(probe().facts, folder, marker, asked.options)
            )
    except OSError as error:
        advice = "choose a folder in which the driver may write"
        yield Finding(False, f"checkpoint_dir: {error}", advice)
        return True
    except Exception as error:  # noqa: BLE001, whatever fails is the finding
        if not late.is_set():
            advice = "see the executors' logs; Python is the same everywhere (PYSPARK_PYTHON)"
            yield Finding(False, f"asking the executors: {reason(error)}", advice)
            return True
        yield late_ones(asked)
        return False
    yield from of_hosts(told, has_folder=folder is not None)
    return True


def late_ones(asked: Asked) -> Finding:
    """What is said where not all executors have answered in time."""
    advice = "is there room for spark.executor.cores and spark.executor.memory? See --wait"
    return Finding(False, f"not all executors answered within {asked.wait_s:g} s", advice)


def of_hosts(told: list[dict[str, Any]], *, has_folder: bool) -> Iterator[Finding]:
    """What executors have said, by what is not well."""
    driver = next(iter(probe().facts(None, "", {}, ())))
    hosts = _named({one["host"] for one in told})
    yield Finding(True, f"executors that answered: {len(told)}, on {hosts}")
    wrong: dict[Finding, set[str]] = {}
    for one in told:
        for finding in _trouble(one, driver):
            wrong.setdefault(finding, set()).add(one["host"])
    for finding, where in wrong.items():
        yield Finding(False, f"{_named(where)}: {finding.what}", finding.advice)
    if has_folder and not any(one["folder"] for one in told):
        yield Finding(True, "checkpoint_dir: all these see it and write there")


def _answers(context: Any, ask: Callable[..., Any]) -> list[dict[str, Any]]:
    """Ask until all executors that Spark has have answered, or some rounds did not reach more.

    The first round has executors and workers started, the next is short: within its time a clock
    is that of the driver.
    """
    told: dict[tuple[str, str, int], dict[str, Any]] = {}
    for again in range(_ROUNDS):
        executors = max(len(spark_private.executors(context)), 1)
        tasks = TASKS_PER_SLOT * max(context.defaultParallelism, executors)
        begin = time.time()
        answers = context.parallelize(range(tasks), tasks).mapPartitions(ask).collect()
        end = time.time()
        for one in answers:
            apart = max(begin - one["time"], one["time"] - end, 0)
            told[one["host"], one["machine"], one["executor"]] = {**one, "apart": apart}
        if again and len(told) >= executors:
            break
    return list(told.values())


@contextmanager
def _bounded(context: Any, seconds: float, late: threading.Event) -> Iterator[None]:
    """Cancel this thread's jobs after so many seconds, which `late` tells."""
    group = f"clonos doctor {uuid.uuid4().hex}"
    context.setJobGroup(group, "clonos doctor", interruptOnCancel=True)
    with after(seconds, lambda: context.cancelJobGroup(group), late):
        yield


@contextmanager
def after(seconds: float, give_up: Callable[[], object], late: threading.Event) -> Iterator[None]:
    """Have `give_up` called when so many seconds have passed, and `late` set."""

    def passed() -> None:
        late.set()
        give_up()

    timer = threading.Timer(seconds, passed)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _trouble(one: dict[str, Any], driver: dict[str, Any]) -> Iterator[Finding]:
    """What is not well where `one` was told; ``apart`` is how far its clock is off, in seconds."""
    if one["clonos"] != driver["clonos"]:
        what = f"Clonos {one['clonos']}, and on the driver {driver['clonos']}"
        advice = "install the same on all nodes, for the Python of PYSPARK_PYTHON"
        yield Finding(False, what, advice)
    if one["apart"] > _CLOCKS_APART:
        advice = "have all follow one time server: clonos.time() is the executor's clock"
        yield Finding(False, f"clock more than {_CLOCKS_APART:g} s off the driver's", advice)
    limit = files(one["files"])
    if not limit.ok:
        yield limit
    if one["folder"]:
        advice = "mount the same folder on the driver and all executors, for the user they run as"
        if one["is_store"]:
            advice = (
                "executors need the way there and credentials, too: --storage-option, as "
                "storage_options= of attach, or spark.executorEnv.… (docs/deploy.md)"
            )
        yield Finding(False, f"checkpoint_dir: {one['folder']}", advice)


def _named(hosts: set[str]) -> str:
    """Some of the hosts, and how many there are."""
    first = ", ".join(sorted(hosts)[:_NAMED])
    return first if len(hosts) <= _NAMED else f"{first} and {len(hosts) - _NAMED} more"


def probe() -> Any:
    """Return the module that is sent, with what is in it, whether Clonos is there or not."""
    from pyspark import cloudpickle

    from clonos.cli import probe as sent

    by_value: Any = cloudpickle.register_pickle_by_value
    by_value(sent)
    return sent


@contextmanager
def _marked(folder: str | None) -> Iterator[str]:
    """A file in `folder` that executors can look for."""
    marker = f".clonos-doctor-{uuid.uuid4().hex}"
    if folder is None or "://" in folder:
        yield marker
        return
    (Path(folder) / marker).touch()
    try:
        yield marker
    finally:
        (Path(folder) / marker).unlink(missing_ok=True)


# -- a session -----------------------------------------------------------------------------------


def _round_trip(spark: Any, agent_ports: str | None) -> Finding:
    import clonos

    executors = len(spark_private.executors(spark.sparkContext))
    tasks = TASKS_PER_SLOT * max(spark.sparkContext.defaultParallelism, executors)
    try:
        with clonos.attach(spark, agent_ports=agent_ports) as session:
            return use(session, tasks, executors)
    except Exception as error:  # noqa: BLE001, whatever fails is the finding
        return Finding(False, f"{_USE}: {reason(error)}", "see the executors' logs and agent.log")


def use(session: Any, tasks: int, executors: int = 0) -> Finding:
    """Have a causal function called in so many tasks; `executors` that Spark has, if known."""
    from clonos import causal

    def _double(n: int) -> int:
        return 2 * n

    double = causal("long", uid="clonos-doctor")(_double)
    doubled = session.spark.range(0, _ROWS, 1, tasks).select(double("id").alias("x"))
    total = doubled.agg({"x": "sum"}).first()[0]
    agents = len(session.stats().agents)
    if total != _ROWS * (_ROWS - 1):
        return Finding(
            False, f"{_USE}: its sum was {total}", "this is a fault of Clonos: report it"
        )
    # The driver's, and one with each executor.
    missing = 1 + executors - agents
    advice = (
        f"{missing} executors have none: their tasks were few, or failed and ran elsewhere. Are "
        "there as many ports as agents on one host (--agent-ports)? See the executors' logs"
    )
    return Finding(True, f"{_USE}: {agents} agents", advice, known=missing > 0)


def reason(error: Exception) -> str:
    """What an exception says; Java's without its stack, and what it has been through."""
    java = getattr(error, "java_exception", None)
    if java is not None:
        # The JVM may be what was lost.
        with suppress(Exception):
            return str(java.getMessage() or error).partition("\n")[0]
    return str(error)
