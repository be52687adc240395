"""`clonos-sqlite` on real Spark."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sink_scene as scene

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
SINK = "clonos-sqlite"


def options_for(folder: Path, **more: str) -> dict[str, str]:
    return {"path": str(folder / "results.db"), "table": "words", **more}


def query(folder: Path, statement: str) -> list[Any]:
    with sqlite3.connect(folder / "results.db") as base:
        return base.execute(statement).fetchall()


def ids(folder: Path) -> list[int]:
    return [row[0] for row in query(folder, "SELECT id FROM words ORDER BY id")]


def test_each_epoch_is_written_once(spark: Any, tmp_path: Path) -> None:
    wanted = scene.feed(tmp_path, 0) + scene.feed(tmp_path, 1)
    scene.run(spark, SINK, options_for(tmp_path), tmp_path)
    assert ids(tmp_path) == wanted
    assert scene.forget_commit(tmp_path / "checkpoint") == 1
    wanted += scene.feed(tmp_path, 2)
    scene.run(spark, SINK, options_for(tmp_path), tmp_path)
    assert ids(tmp_path) == wanted
    assert query(tmp_path, "SELECT epoch FROM _clonos_fence") == [(2,)]
