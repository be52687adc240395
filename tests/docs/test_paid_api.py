"""The batch example: what was paid for before the job was killed is not paid for again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = 160


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_row_is_paid_for_twice() -> None:
    command = [
        sys.executable,
        str(ROOT / "examples" / "paid_api.py"),
        "--rows",
        str(ROWS),
        "--json",
    ]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    plain, ours = json.loads(done.stdout)
    assert plain["paid for twice"] >= ROWS // 3
    assert plain["answers that changed"] > 0
    assert ours["paid for before the kill"] >= ROWS // 2
    assert (ours["rows"], ours["paid for in all"], ours["answers that changed"]) == (ROWS, ROWS, 0)
    # Only what was under way in two tasks when all died, or had just been answered, is asked again.
    assert ours["asked again, not paid for"] <= 2 * (16 + 16)
    one, many = ours["seconds for a slice"].values()
    assert many < one
