"""Drivers killed while timers are pending: the next one fires them without a row, and once."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clonos import testing

pytestmark = [pytest.mark.timeout(240), pytest.mark.whole]
DRIVER = Path(__file__).with_name("timer_driver.py")
PATIENCE_SECONDS = 100.0
# Long enough for batches that should not be.
QUIET_SECONDS = 3.0


@contextlib.contextmanager
def driver(folder: Path, name: str, **plan: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver, which is killed in the end with all that belongs to it."""
    plan |= {"folder": str(folder), "name": name}
    with (folder / "stderr.txt").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(plan)],
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


def wait_for(folder: Path, name: str, process: subprocess.Popen[bytes]) -> Path:
    mark = folder / name
    testing.wait_until(
        lambda: mark.exists() or process.poll() is not None, mark.name, PATIENCE_SECONDS
    )
    assert mark.exists(), (folder / "stderr.txt").read_text()[-3000:]
    return mark


def outputs(folder: Path, name: str) -> dict[int, Any]:
    files = sorted(folder.glob(f"{name}-*.json"))
    return {int(file.stem.rpartition("-")[2]): json.loads(file.read_text()) for file in files}


def test_timers_of_a_killed_driver_fire_once_without_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"id": "a", "n": 1_500}, {"id": "b", "n": 1_600}, {"id": "b", "n": 3_600_000}]
    (tmp_path / "in" / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Killed in the batch in which they fire, and before it.
    with driver(tmp_path, "first", hang=1) as process:
        wait_for(tmp_path, "hangs", process)
    first = outputs(tmp_path, "first")
    assert [row["what"] for row in first[0]] == ["rows"] * 2
    assert {row["what"] for row in first[1]} == {"timer"}
    with driver(tmp_path, "second") as process:
        wait_for(tmp_path, "second-1.json", process)
        time.sleep(QUIET_SECONDS)
    second = outputs(tmp_path, "second")
    # The batch runs again as it was.
    assert sorted(map(repr, second[1])) == sorted(map(repr, first[1]))
    fired = [row["id"] for rows in second.values() for row in rows if row["what"] == "timer"]
    assert sorted(fired) == ["a", "b"]
    assert len(second) <= 2


def test_timers_that_come_due_while_no_driver_runs_fire_in_the_next(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text(json.dumps({"id": "a", "n": 4_000}) + "\n")
    with driver(tmp_path, "first") as process:
        wait_for(tmp_path, "first-0.json", process)
        # Time to commit it.
        testing.wait_until(
            (tmp_path / "checkpoint" / "commits" / "0").exists, "commit", PATIENCE_SECONDS
        )
    assert list(outputs(tmp_path, "first")) == [0]
    time.sleep(4)
    with driver(tmp_path, "second") as process:
        wait_for(tmp_path, "second-1.json", process)
        time.sleep(QUIET_SECONDS)
    second = outputs(tmp_path, "second")
    assert [[row["what"] for row in rows] for rows in second.values()] == [["timer"]]
