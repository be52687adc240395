"""``clonos epochs``: what is in a checkpoint folder is listed, and dropped unless it is in use."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clonos import _core
from clonos.cli.commands import app
from clonos.cli.epochs import parse_age
from clonos.errors import ConfigError

WHOLE = Path(__file__).parents[1] / "golden" / "segments" / "v4" / "whole.seg"
QUERY, OTHER = "0123456789abcdef", "fedcba9876543210"


def epoch(root: Path, query: str, name: str, *, days: float) -> Path:
    """An epoch with one file, last written `days` ago."""
    folder = root / query / name
    folder.mkdir(parents=True)
    file = folder / "00000000000000c3-00000000000000a1-000000000000000b.seg"
    shutil.copy(WHOLE, file)
    written = time.time() - days * 86_400
    os.utime(file, (written, written))
    return folder


def command(root: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["epochs", str(root), *arguments])


def listed(root: Path) -> list[dict[str, Any]]:
    done = command(root, "--list", "--json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.output)
    return found


def test_epochs_are_listed_oldest_first_and_dropped_by_name_or_age(tmp_path: Path) -> None:
    old = epoch(tmp_path, QUERY, "batch-7", days=10)
    torn = epoch(tmp_path, OTHER, "named-x", days=3)
    file = next(torn.iterdir())
    # Those of a query, and of a named epoch.
    for folder in (old.parent, torn):
        (folder / "0000000000000001-00000000000000c3.claim").write_text("app")
    written = file.stat().st_mtime
    file.write_bytes(b"CL")
    os.utime(file, (written, written))
    (tmp_path / "sources" / "socket").mkdir(parents=True)
    found = listed(tmp_path)
    assert [one["name"] for one in found] == ["clicks/7", f"{OTHER}/named-x"]
    assert found[0]["bytes"] == WHOLE.stat().st_size
    assert found[0]["applications"] == ["000000000000000b"]
    assert not any(one["in_use"] for one in found)
    table = command(tmp_path).output
    assert "clicks/7" in table
    assert "10 d ago" in table

    missing = command(tmp_path, "--drop", "clicks/8")
    assert missing.exit_code == 1
    assert "clicks/8" in missing.output
    assert command(tmp_path, "--older-than", "7d").exit_code == 0
    assert not old.parent.exists(), "the folder of the query is empty, too"
    assert command(tmp_path, "--drop", f"{OTHER}/named-x").exit_code == 0
    assert listed(tmp_path) == []
    assert not torn.parent.exists(), "nobody claims what is dropped"
    assert (tmp_path / "sources" / "socket").exists()


def test_what_was_just_written_stays_unless_forced(tmp_path: Path) -> None:
    folder = epoch(tmp_path, QUERY, "batch-7", days=0)
    refused = command(tmp_path, "--drop", "clicks/7")
    assert refused.exit_code == 1
    assert "in use" in refused.output
    assert folder.exists()
    assert command(tmp_path, "--drop", "clicks/7", "--force").exit_code == 0
    assert not folder.exists()


def test_what_a_running_session_has_open_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Config:
        checkpoint_dir = str(tmp_path)

    tasks = {"tasks": [{"task": "score@clicks/7/0", "operator": "score"}]}
    monkeypatch.setattr("clonos.cli.epochs.sessions", lambda: [Config()])
    monkeypatch.setattr(_core, "cluster_stats", lambda _config: json.dumps(tasks))
    folder = epoch(tmp_path, QUERY, "batch-7", days=30)
    assert listed(tmp_path)[0]["in_use"]
    assert command(tmp_path, "--older-than", "7d").exit_code == 1
    assert folder.exists()


def test_ages_and_folders_are_checked(tmp_path: Path) -> None:
    assert (parse_age("7d"), parse_age("1.5h"), parse_age("90s")) == (604_800, 5_400, 90)
    for text in ("7", "d", "-1d", "7 years"):
        with pytest.raises(ConfigError, match="older-than"):
            parse_age(text)
    gone = command(tmp_path / "gone")
    assert gone.exit_code == 2
    assert "checkpoint_dir" in gone.output
