"""A Spark with the sinks for each module of tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import sink_scene


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    session = sink_scene.start_spark()
    yield session
    session.stop()
