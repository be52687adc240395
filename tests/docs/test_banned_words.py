"""The streaming example, with kills, as `make demo-stream` runs it, only shorter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = os.environ.get("CLONOS_DEMO_SECONDS", "20")


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_word_is_counted_once_whatever_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "banned_words_demo"), "--chaos"]
    command += ["--only", "clonos", "--seconds", SECONDS, "--pause", "5", "--out", str(tmp_path)]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "each word" in done.stdout
    assert (tmp_path / "banned_words.png").stat().st_size > 10_000
