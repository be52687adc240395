"""What ``clonos doctor --master`` looks at: the hosts of a cluster, and a session there."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clonos.cli.finding import Finding, files

_ROWS = 1000
# Tasks for each slot that Spark says there is, so that each executor gets some.
_TASKS_PER_SLOT = 2
_CLOCKS_APART = 1.0
# Hosts whose names are told where there are many.
_NAMED = 3
CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum.enabled"
ENCRYPTED = ("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.io.encryption.enabled")


def checks(master: str, checkpoint_dir: Path | None, agent_ports: str | None) -> Iterator[Finding]:
    """Start Spark on `master` and look around there."""
    if master.startswith("sc:"):
        advice = "attach needs a classic session: give the address of the cluster, not of Connect"
        yield Finding(False, f"{master} is Spark Connect", advice)
        return
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.builder.master(master).appName("clonos doctor").getOrCreate()
    except Exception as error:  # noqa: BLE001, whatever fails is the finding
        yield Finding(False, f"Spark on {master}: {_reason(error)}", "see the output above")
        return
    try:
        yield from _settings(spark)
        yield from _hosts(spark, checkpoint_dir)
        yield _attempt("a causal UDF on the executors", lambda: _round_trip(spark, agent_ports))
    finally:
        spark.stop()


def _settings(spark: Any) -> Iterator[Finding]:
    is_on = spark.conf.get(CHECKSUM, "false") == "true"
    yield Finding(
        is_on,
        f"Spark's shuffle checksum is {'on' if is_on else 'off'}",
        f"set {CHECKSUM}=true, so that Spark notices when more was lost than Clonos covers",
    )
    settings = spark.sparkContext.getConf()
    encrypted = [name for name in ENCRYPTED if settings.get(name, "false") == "true"]
    if encrypted:
        yield Finding(
            True,
            f"Spark encrypts ({', '.join(encrypted)}), and Clonos does not",
            "whoever reads the network between executors or their disks sees recorded answers: "
            "keep both to those who may",
            known=True,
        )


# -- hosts ---------------------------------------------------------------------------------------


def _hosts(spark: Any, checkpoint_dir: Path | None) -> Iterator[Finding]:
    """What the hosts say, by what is not well: there may be a thousand."""
    context = spark.sparkContext
    folder = None if checkpoint_dir is None else str(checkpoint_dir.resolve())
    tasks = _TASKS_PER_SLOT * max(context.defaultParallelism, 1)
    try:
        with _marked(folder) as marker:
            ask = functools.partial(_probe().facts, folder, marker)
            begin = time.time()
            told = context.parallelize(range(tasks), tasks).mapPartitions(ask).collect()
            end = time.time()
    except Exception as error:  # noqa: BLE001, whatever fails is the finding
        yield Finding(False, f"asking the executors: {_reason(error)}", "see the executors' logs")
        return
    driver = next(iter(_probe().facts(None, "", ())))
    yield Finding(True, f"executors answered on {_named({one['host'] for one in told})}")
    wrong: dict[Finding, set[str]] = {}
    for one in told:
        apart = max(begin - one["time"], one["time"] - end, 0)
        for finding in _trouble(one, driver, apart):
            wrong.setdefault(finding, set()).add(one["host"])
    for finding, hosts in wrong.items():
        yield Finding(False, f"{_named(hosts)}: {finding.what}", finding.advice)
    if folder is not None and not any(one["folder"] for one in told):
        yield Finding(True, "checkpoint_dir: all executors see it and write there")


def _trouble(one: dict[str, Any], driver: dict[str, Any], apart: float) -> Iterator[Finding]:
    """What is not well where `one` was told; `apart` is how far its clock is off, in seconds."""
    if one["clonos"] != driver["clonos"]:
        what = f"Clonos {one['clonos']}, and on the driver {driver['clonos']}"
        advice = "install the same on all nodes, for the Python of PYSPARK_PYTHON"
        yield Finding(False, what, advice)
    if apart > _CLOCKS_APART:
        advice = "have all follow one time server: clonos.time() is the executor's clock"
        yield Finding(False, f"clock more than {_CLOCKS_APART:g} s off the driver's", advice)
    limit = files(one["files"])
    if not limit.ok:
        yield limit
    if one["folder"]:
        advice = "mount the same folder on the driver and all executors, for the user they run as"
        yield Finding(False, f"checkpoint_dir: {one['folder']}", advice)


def _named(hosts: set[str]) -> str:
    """Some of the hosts, and how many there are."""
    first = ", ".join(sorted(hosts)[:_NAMED])
    return first if len(hosts) <= _NAMED else f"{first} and {len(hosts) - _NAMED} more"


def _probe() -> Any:
    """The module that is sent, with what is in it, whether Clonos is there or not."""
    from pyspark import cloudpickle

    from clonos.cli import probe

    by_value: Any = cloudpickle.register_pickle_by_value
    by_value(probe)
    return probe


@contextmanager
def _marked(folder: str | None) -> Iterator[str]:
    """A file in `folder` that executors can look for; what they write beside it goes, too."""
    marker = f".clonos-doctor-{uuid.uuid4().hex}"
    if folder is None:
        yield marker
        return
    (Path(folder) / marker).touch()
    try:
        yield marker
    finally:
        for path in Path(folder).glob(f"{marker}*"):
            path.unlink(missing_ok=True)


# -- a session -----------------------------------------------------------------------------------


def _round_trip(spark: Any, agent_ports: str | None) -> str:
    import clonos
    from clonos import causal

    def _double(n: int) -> int:
        return 2 * n

    with clonos.attach(spark, agent_ports=agent_ports) as session:
        double = causal("long", uid="clonos-doctor")(_double)
        doubled = spark.range(0, _ROWS, 1, 4).select(double("id").alias("x"))
        total = doubled.agg({"x": "sum"}).first()[0]
        agents = len(session.stats().agents)
    if total != _ROWS * (_ROWS - 1):
        message = f"sum was {total}"
        raise RuntimeError(message)
    return f"{agents} agents answered"


def _attempt(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(True, f"{what}: {check()}")
    except Exception as error:  # noqa: BLE001, whatever fails is the finding
        return Finding(False, f"{what}: {_reason(error)}", "see the executors' logs and agent.log")


def _reason(error: Exception) -> str:
    """What an exception says; Java's without its stack."""
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.getMessage())
