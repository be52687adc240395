"""A cluster of three hosts for each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "kill")]

import netns as cluster  # noqa: E402
import scene  # noqa: E402

HOSTS = 3


@pytest.fixture
def hosts() -> Iterator[cluster.Hosts]:
    reason = cluster.why_not()
    if reason:
        pytest.skip(reason)
    with cluster.Hosts(HOSTS) as started:
        yield started


@pytest.fixture
def spark(hosts: cluster.Hosts) -> Iterator[Any]:
    session = hosts.session()
    cluster.await_workers(session, HOSTS)
    yield session
    session.stop()


@pytest.fixture
def record(hosts: cluster.Hosts) -> scene.Record:
    return scene.Record(hosts.folder / "calls.txt")
