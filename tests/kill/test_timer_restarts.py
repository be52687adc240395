"""Drivers killed while timers are pending: the next one fires them without a row, and once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from dying import PATIENCE_SECONDS, await_mark, driver

from clonos import testing

pytestmark = [pytest.mark.timeout(480), pytest.mark.whole]
DRIVER = "timer_driver.py"
# Long enough for batches that should not be.
QUIET_SECONDS = 3.0


def outputs(folder: Path, name: str) -> dict[int, Any]:
    files = sorted(folder.glob(f"{name}-*.json"))
    return {int(file.stem.rpartition("-")[2]): json.loads(file.read_text()) for file in files}


def test_timers_of_a_killed_driver_fire_once_without_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"id": "a", "n": 1_500}, {"id": "b", "n": 1_600}, {"id": "b", "n": 3_600_000}]
    (tmp_path / "in" / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Killed in the batch in which they fire, and before it.
    with driver(DRIVER, tmp_path, name="first", hang=1) as process:
        await_mark(tmp_path / "hangs", process)
    first = outputs(tmp_path, "first")
    assert [row["what"] for row in first[0]] == ["rows"] * 2
    assert {row["what"] for row in first[1]} == {"timer"}
    with driver(DRIVER, tmp_path, name="second") as process:
        await_mark(tmp_path / "second-1.json", process)
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
    with driver(DRIVER, tmp_path, name="first") as process:
        await_mark(tmp_path / "first-0.json", process)
        # Time to commit it.
        testing.wait_until(
            (tmp_path / "checkpoint" / "commits" / "0").exists, "commit", PATIENCE_SECONDS
        )
    assert list(outputs(tmp_path, "first")) == [0]
    time.sleep(4)
    with driver(DRIVER, tmp_path, name="second") as process:
        await_mark(tmp_path / "second-1.json", process)
        time.sleep(QUIET_SECONDS)
    second = outputs(tmp_path, "second")
    assert [[row["what"] for row in rows] for rows in second.values()] == [["timer"]]
