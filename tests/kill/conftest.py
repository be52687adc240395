"""A real cluster on this machine, shared by the tests of a module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import scene

from clonos import testing


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    # A lost executor does not come back; asking it again for its shuffle files only takes time.
    settings = {
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "200ms",
        "spark.decommission.enabled": "true",
    }
    spark = scene.start(f"local-cluster[{scene.EXECUTORS},1,1024]", **settings)
    yield spark
    # Killing first keeps Spark from starting executors while it shuts down.
    executors = [executor.pid for executor in testing.executors(spark)]
    spark.stop()
    testing.wait_gone(*executors)


@pytest.fixture
def spark(cluster: Any) -> Any:
    scene.await_executors(cluster)
    return cluster


@pytest.fixture
def record(tmp_path: Path) -> scene.Record:
    return scene.Record(tmp_path / "calls.txt")
