"""``clonos doctor``: whether this machine, and a cluster, are ready."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from clonos import _core
from clonos._driver.java import JavaMissingError, ensure_java, java_version
from clonos._versions import KNOWN_SPARK, minor_version
from clonos.cli.cluster import Asked, checks
from clonos.cli.finding import Finding, files
from clonos.cli.probe import STORE_PATIENCE_S
from clonos.errors import ClonosError

_FSYNC_ROUNDS = 20


def run(checkpoint_dir: str | None, options: dict[str, str], cluster: Asked | None) -> int:
    """Print each check as it is made; the number of failed ones, at most 1 as exit code."""
    console = Console()
    failed = 0
    for finding in _checks(checkpoint_dir, options, cluster):
        mark = "[green]ok[/green]  " if finding.ok else "[red]fail[/red]"
        console.print(f"{'note' if finding.known else mark} {escape(finding.what)}")
        failed += not finding.ok
        if finding.known or not finding.ok:
            console.print(f"     {escape(finding.advice)}")
    return min(failed, 1)


def _checks(
    checkpoint_dir: str | None, options: dict[str, str], cluster: Asked | None
) -> Iterator[Finding]:
    yield Finding(
        sys.version_info >= (3, 11), f"Python {sys.version.split()[0]}", "use 3.11 or later"
    )
    yield Finding(
        _core.build_profile() == "release",
        f"core built in {_core.build_profile()} mode",
        "a debug build is slow: build with `maturin develop --release`",
    )
    yield _pyspark()
    if cluster is None or not cluster.is_client:
        # Of a client nothing else is here.
        yield from _of_driver(checkpoint_dir, options)
    if cluster is not None:
        yield from checks(cluster)


def _of_driver(checkpoint_dir: str | None, options: dict[str, str]) -> Iterator[Finding]:
    yield _java()
    yield Finding(
        sys.platform == "linux",
        f"platform {sys.platform}",
        "agents watch executors through Linux's process files",
    )
    yield files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    if checkpoint_dir is not None:
        is_url = "://" in checkpoint_dir
        yield _store(checkpoint_dir, options) if is_url else _checkpoint(Path(checkpoint_dir))


def _pyspark() -> Finding:
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return Finding(False, "PySpark is not installed", "pip install 'clonos[spark]'")
    first, last = KNOWN_SPARK
    found = minor_version(version)
    advice = f"Clonos was tested with PySpark {first[0]}.{first[1]} to {last[0]}.{last[1]}"
    return Finding(first <= found <= last, f"PySpark {version}", advice)


def _java() -> Finding:
    try:
        java = ensure_java()
    except JavaMissingError as error:
        return Finding(False, "no Java 17 or later found", str(error))
    return Finding(True, f"Java {java_version(java)} ({java})")


def _store(url: str, options: dict[str, str]) -> Finding:
    try:
        took = _core.try_checkpoint(url, options, STORE_PATIENCE_S)
    except ClonosError as error:
        advice = "see docs/deploy.md; what `storage_options` says is given as --storage-option here"
        return Finding(False, f"checkpoint_dir {url}: {error}", advice)
    what = f"a put takes {took * 1e3:.0f} ms, and overwrites nothing where it must not"
    return Finding(True, f"checkpoint_dir {url}: {what}")


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
