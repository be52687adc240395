"""The example of a loop: what failed is tried again later, and each try is counted once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORDERS = 60


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(800)
def test_each_try_is_counted_once() -> None:
    command = [sys.executable, str(ROOT / "examples" / "retry_queue.py")]
    command += ["--orders", str(ORDERS), "--json"]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["orders"] == result["rows"] == ORDERS
    assert result["delivered"] + result["given up"] == ORDERS
    assert result["tries in the table"] == result["tries that the service saw"] > ORDERS
    assert result["tries before the kill"] < result["tries in the table"]
    assert result["orders with other tries"] == 0
