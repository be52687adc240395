"""``clonos doctor``: whether this machine, and a cluster, are ready."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from clonos import _core
from clonos._driver.java import JavaMissingError, ensure_java, java_version

_FSYNC_ROUNDS = 20
_DOCTOR_ROWS = 1000


@dataclass(frozen=True)
class Finding:
    """One check: is it well, what was seen, and what to do if not."""

    ok: bool
    what: str
    advice: str = ""


def run(master: str | None, checkpoint_dir: Path | None) -> int:
    """Print each check as it is made; the number of failed ones, at most 1 as exit code."""
    console = Console()
    failed = 0
    for finding in _checks(master, checkpoint_dir):
        mark = "[green]ok[/green]  " if finding.ok else "[red]fail[/red]"
        console.print(f"{mark} {finding.what}")
        if not finding.ok:
            failed += 1
            console.print(f"     {finding.advice}")
    return min(failed, 1)


def _checks(master: str | None, checkpoint_dir: Path | None) -> Iterator[Finding]:
    yield Finding(
        sys.version_info >= (3, 11), f"Python {sys.version.split()[0]}", "use 3.11 or later"
    )
    yield Finding(
        _core.build_profile() == "release",
        f"core built in {_core.build_profile()} mode",
        "a debug build is slow: build with `maturin develop --release`",
    )
    yield _pyspark()
    yield _java()
    yield Finding(
        sys.platform == "linux",
        f"platform {sys.platform}",
        "agents watch executors through Linux's process files",
    )
    if checkpoint_dir is not None:
        yield _checkpoint(checkpoint_dir)
    if master is not None:
        yield from _cluster(master)


def _pyspark() -> Finding:
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return Finding(False, "PySpark is not installed", "pip install 'clonos[spark]'")
    ok = tuple(map(int, version.split(".")[:2])) >= (4, 1)
    return Finding(ok, f"PySpark {version}", "Clonos needs PySpark 4.1 or later")


def _java() -> Finding:
    try:
        java = ensure_java()
    except JavaMissingError as error:
        return Finding(False, "no Java 17 or later found", str(error))
    return Finding(True, f"Java {java_version(java)} ({java})")


def _checkpoint(folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            start = time.perf_counter()
            for _ in range(_FSYNC_ROUNDS):
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
            each = (time.perf_counter() - start) / _FSYNC_ROUNDS * 1e3
    except OSError as error:
        return Finding(False, f"checkpoint_dir {folder}: {error}", "choose a folder you can write")
    return Finding(True, f"checkpoint_dir {folder}: a synced write takes {each:.2f} ms")


def _cluster(master: str) -> Iterator[Finding]:
    from pyspark.sql import SparkSession

    import clonos

    spark = SparkSession.builder.master(master).appName("clonos doctor").getOrCreate()
    try:
        checksum = spark.conf.get("spark.sql.shuffle.orderIndependentChecksum.enabled", "false")
        yield Finding(
            checksum == "true",
            f"Spark's shuffle checksum is {'on' if checksum == 'true' else 'off'}",
            "set spark.sql.shuffle.orderIndependentChecksum.enabled=true, so that Spark notices "
            "when more was lost than Clonos covers",
        )
        session = clonos.attach(spark)
        yield _attempt("a causal UDF on the executors", lambda: _round_trip(spark, session))
    finally:
        spark.stop()


def _round_trip(spark: Any, session: Any) -> str:
    from clonos import causal

    def _double(n: int) -> int:
        return 2 * n

    double = causal("long", uid="clonos-doctor")(_double)
    doubled = spark.range(0, _DOCTOR_ROWS, 1, 4).select(double("id").alias("x"))
    total = doubled.agg({"x": "sum"}).first()[0]
    agents = len(session.stats().agents)
    session.stop()
    if total != _DOCTOR_ROWS * (_DOCTOR_ROWS - 1):
        message = f"sum was {total}"
        raise RuntimeError(message)
    return f"{agents} agents answered"


def _attempt(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(True, f"{what}: {check()}")
    except Exception as error:  # noqa: BLE001, whatever fails is the finding
        return Finding(False, f"{what}: {error}", "see the executors' logs and agent.log")
