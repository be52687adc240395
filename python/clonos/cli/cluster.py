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
    """What each host says, which is told of the hosts of which it is not well."""
    context = spark.sparkContext
    folder = None if checkpoint_dir is None else str(checkpoint_dir.resolve())
    tasks = _TASKS_PER_SLOT * max(context.defaultParallelism, 1)
    with _marked(folder) as marker:
        ask = functools.partial(_probe().facts, folder, marker)
        begin = time.time()
        try:
            told = context.parallelize(range(tasks), tasks).mapPartitions(ask).collect()
        except Exception as error:  # noqa: BLE001, whatever fails is the finding
            yield Finding(
                False, f"a job on {context.master}: {_reason(error)}", "see the executors' logs"
            )
            return
        end = time.time()
    driver = next(iter(_probe().facts(None, "", ())))
    by_host = {one["host"]: one for one in told}
    yield Finding(True, f"{len(by_host)} hosts answered: {', '.join(sorted(by_host))}")
    for host, one in sorted(by_host.items()):
        yield from _host(host, one, driver, max(begin - one["time"], one["time"] - end, 0))
    if folder is not None:
        wrong = {one["host"]: one["folder"] for one in told if one["folder"]}
        shown = "; ".join(f"{host} {reason}" for host, reason in sorted(wrong.items()))
        yield Finding(
            not wrong,
            f"checkpoint_dir on the executors: {shown or 'all see it and write there'}",
            "mount the same folder on the driver and on each executor, for the user they run as",
        )


def _host(
    host: str, one: dict[str, Any], driver: dict[str, Any], apart: float
) -> Iterator[Finding]:
    for name in ("python", "clonos"):
        if one[name] != driver[name]:
            yield Finding(
                False,
                f"{host} has {name} {one[name]}, and the driver {driver[name]}",
                "install the same on all nodes, for the Python of PYSPARK_PYTHON",
            )
    if apart > _CLOCKS_APART:
        yield Finding(
            False,
            f"the clock of {host} is {apart:.0f} s off the driver's",
            "have both follow one time server: clonos.time() is the executor's clock",
        )
    limit = files(one["files"], host)
    if not limit.ok:
        yield limit


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
