"""An agent in this process, for tests that need no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_agent import make_config

from clonos import _core


@pytest.fixture
def config(tmp_path: Path) -> Iterator[_core.SessionConfig]:
    made = make_config(tmp_path)
    agent = _core.Agent.start(
        made,
        "127.0.0.1",
        0,
        lambda _stage: None,
        lambda *_task: False,
        lambda *_execution: None,
        lambda *_epoch: (1_000, -1, -1),
        lambda _reader: None,
    )
    yield made
    agent.stop()
