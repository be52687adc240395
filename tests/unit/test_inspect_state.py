"""``clonos inspect`` of keyed state: what an agent kept of two epochs, a savepoint, and damage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clonos import _core
from local_agent import make_config, open_task, start_agent

NUMBER = pa.schema([("n", pa.int64())])
VARIABLES = [
    ("sum", "value", None, NUMBER, 0),
    ("last", "list", None, NUMBER, 60_000),
    ("words", "map", pa.schema([("word", pa.string())]), NUMBER, 0),
]
QUERY, OPERATOR = "orders", "count"


def run_epoch(config: _core.SessionConfig, epoch: int, users: list[str]) -> None:
    """Write a value, an element, a pair and a timer of each user."""
    task = open_task(
        config,
        _core.ServiceTask,
        OPERATOR,
        query=QUERY,
        epoch=epoch,
        stage=epoch,
        token=1,
        named=True,
    )
    state = _core.StateTask.open(
        task,
        query=QUERY,
        operator=OPERATOR,
        epoch=epoch,
        partition=0,
        partitions=1,
        keys=pa.schema([("user", pa.string())]),
        variables=VARIABLES,
    )
    state.group([pa.record_batch({"user": users})], [0])
    state.load()
    keys = pa.array(range(len(users)), pa.int32())
    puts = pa.array([0] * len(users), pa.uint8())
    values = pa.array([{"n": epoch}] * len(users), pa.struct(list(NUMBER)))
    for variable in (0, 1):
        state.write(variable, keys, puts, None, values)
    words = pa.array([{"word": "x"}] * len(users))
    state.write(2, keys, puts, words, values)
    state.write_timers(keys, puts, pa.array([10_000 + epoch] * len(users), pa.int64()))
    state.commit()
    task.publish()
    task.finish()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A checkpoint folder with two committed versions, and a savepoint beside it."""
    folder = tmp_path / "kept"
    folder.mkdir()
    config = make_config(tmp_path, checkpoint_dir=str(folder))
    agent = start_agent(config)
    try:
        run_epoch(config, 0, ["a", "b"])
        agent.commit_epoch(QUERY, 0)
        run_epoch(config, 1, ["b", "c"])
        agent.commit_epoch(QUERY, 1)
        agent.savepoint(QUERY, _core.Location(str(tmp_path / "saved")))
    finally:
        agent.stop()
    return tmp_path


def inspect(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clonos", "inspect", str(folder), *options]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={"COLUMNS": "300"}
    )


def reported(folder: Path) -> tuple[int, list[dict[str, Any]], list[str]]:
    done = inspect(folder, "--json")
    found = json.loads(done.stdout)
    return done.returncode, found["reports"], found["problems"]


def test_states_are_shown_and_what_is_damaged_is_named(kept: Path) -> None:
    variables = (
        "sum: value of (n bigint); last: list of (n bigint), TTL 60000 ms; "
        "words: map of (word string -> n bigint)"
    )
    # Each key has a value and a pair, and all together four elements and four timers.
    counted = {"operator": OPERATOR, "keys": 3, "entries": 10, "timers": 4, "variables": variables}
    code, (report,), problems = reported(kept / "kept")
    assert (code, problems) == (0, [])
    (state,) = report["states"]
    assert state == state | counted | {"query": QUERY, "versions": "0, 1"}
    assert state["bytes"] > 0
    code, (report,), problems = reported(kept / "saved")
    assert (code, problems) == (0, [])
    assert (report["title"], report["query"], report["epoch"]) == (
        f"savepoint {kept / 'saved'}",
        QUERY,
        1,
    )
    (state,) = report["states"]
    assert state == state | counted | {"version": 1}
    code, _, (problem,) = reported(kept / "gone")
    assert code == 1
    assert str(kept / "gone") in problem
    shown = inspect(kept / "kept")
    assert shown.returncode == 0
    assert all(text in shown.stdout for text in (OPERATOR, QUERY, "0, 1", "TTL 60000 ms"))
    # A byte in the middle of a file of each.
    for folder, suffix in (("kept", "*.delta"), ("saved", "*.state")):
        file = max((kept / folder).rglob(suffix))
        damaged = bytearray(file.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        file.write_bytes(damaged)
        code, _, problems = reported(kept / folder)
        assert code == 1
        assert any(str(file) in problem for problem in problems), problems
        assert file.name in inspect(kept / folder).stdout.replace("\n", "")
