"""A real cluster on this machine, shared by the tests of a module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import scene


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with scene.cluster(scene.EXECUTORS, **{"spark.decommission.enabled": "true"}) as spark:
        yield spark


@pytest.fixture
def spark(cluster: Any) -> Any:
    scene.await_executors(cluster)
    return cluster


@pytest.fixture
def record(tmp_path: Path) -> scene.Record:
    return scene.Record(tmp_path / "calls.txt")
