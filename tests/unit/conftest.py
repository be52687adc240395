"""An agent in this process, for tests that need no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clonos import _core
from local_agent import make_config, start_agent


@pytest.fixture
def config(tmp_path: Path) -> Iterator[_core.SessionConfig]:
    made = make_config(tmp_path)
    agent = start_agent(made)
    yield made
    agent.stop()
