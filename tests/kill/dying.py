"""Drivers in processes of their own, to be killed with all that belongs to them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from clonos import testing

PATIENCE_SECONDS = 240.0


@contextlib.contextmanager
def driver(script: str, folder: Path, **plan: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script of this folder with a plan; kill its whole tree in the end."""
    plan["folder"] = str(folder)
    with log_of(folder).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), json.dumps(plan)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        testing.kill_tree(process.pid)
        process.wait()


def await_mark(mark: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the driver has made a file in its folder; fail if it ended without."""
    testing.wait_until(
        lambda: mark.exists() or process.poll() is not None, mark.name, PATIENCE_SECONDS
    )
    assert mark.exists(), log_of(mark.parent).read_text()[-3000:]


def log_of(folder: Path) -> Path:
    """Return the file with what the driver prints."""
    return folder / "stderr.txt"


def told_to(plan: dict[str, Any]) -> Callable[[int, str], None]:
    """Return what a driver says each step of a batch to: it waits to be killed where it is to."""

    def told(number: int, step: str) -> None:
        if [number, step] == plan["hang"]:
            (Path(plan["folder"]) / f"{step} {number}").touch()
            time.sleep(600)

    return told


def session_of(partitions: int) -> Any:
    """Return the Spark of a driver."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    return builder.config("spark.sql.shuffle.partitions", partitions).getOrCreate()
