"""Drivers in processes of their own, to be killed with all that belongs to them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clonos import testing

PATIENCE_SECONDS = 120.0


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
