"""An agent in this process and tasks of it, for tests that need no Spark."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from clonos import _core

SECRET = bytes(range(32))
_attempts = itertools.count(1)
_openers = itertools.count(1)


def make_config(folder: Path, **changes: Any) -> _core.SessionConfig:
    arguments: dict[str, Any] = {
        "app_id": "unit",
        "secret": SECRET,
        "driver_addr": "",
        "driver_socket": str(folder / "a.sock"),
        "local": True,
        "guarantee": "exactly_once",
        "sharing_depth": 0,
        "memory_bytes": 64 << 20,
        "disk_bytes": 1 << 30,
        "spill_policy": "availability",
        "clock_resolution_ns": 0,
        "compress_frames": True,
        "spill_dir": str(folder),
        "checkpoint_dir": None,
        "agent_scope": "executor",
        "on_lost": "rollback",
        "on_ambiguous": "error",
        "io_timeout_ms": 2_000,
    }
    return _core.SessionConfig(**(arguments | changes))


def start_agent(config: _core.SessionConfig) -> _core.Agent:
    """A driver's agent whose Spark knows nothing."""
    return _core.Agent.start(
        config,
        "127.0.0.1",
        0,
        lambda *_stage: None,
        lambda *_task: False,
        lambda *_execution: None,
        lambda *_use: None,
        lambda *_epoch: (1_000, -1, -1),
        lambda _reader: None,
    )


def open_task(
    config: _core.SessionConfig,
    kind: Any,
    operator: str,
    client: _core.Client | None = None,
    **changes: Any,
) -> Any:
    """The next attempt of a task, opened by another worker than those before."""
    arguments = {
        "query": "q",
        "epoch": "e",
        "operator": operator,
        "partition": 0,
        "app": 1,
        "stage": 0,
        "attempt": next(_attempts),
        "worker": next(_openers),
        "token": 0,
        "named": False,
        "execution": None,
        "code": 1,
        "python": "3",
        "label": "f",
        "keyed": False,
        "allow_code_change": False,
        "count_occurrences": True,
    }
    client = client or _core.Client.connect(config, config.driver_socket)
    return kind.open(client, config, **(arguments | changes))
