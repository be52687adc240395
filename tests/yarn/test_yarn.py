"""On a real YARN: containers are started by node managers, and one that dies is replaced."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import mini_yarn

pytestmark = pytest.mark.timeout(500)
ROWS = 200


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mini_yarn.Yarn]:
    with mini_yarn.Yarn(tmp_path_factory.mktemp("yarn")) as started:
        yield started


def calls(folder: Path) -> list[str]:
    return sorted((folder / "calls").read_text().split())


def test_an_executors_container_is_lost(yarn: mini_yarn.Yarn, tmp_path: Path) -> None:
    said = yarn.submit("dying_app.py", tmp_path, "executor")
    assert (tmp_path / "done").exists(), said
    assert calls(tmp_path) == sorted(map(str, range(ROWS)))


def test_yarn_starts_a_driver_again_that_dies_in_its_container(
    yarn: mini_yarn.Yarn, tmp_path: Path
) -> None:
    said = yarn.submit("dying_app.py", tmp_path, "driver", **{"spark.submit.deployMode": "cluster"})
    assert (tmp_path / "done").exists(), said
    first, second = (json.loads((tmp_path / f"told {n}").read_text()) for n in range(2))
    assert first == second
    assert calls(tmp_path) == sorted(map(str, range(ROWS)))
