"""An agent that is allowed 32 MiB is given 1 GiB of determinants (DESIGN §4, guarantee 6)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clonos import _core, _processes
from local_agent import make_config, open_task

MEMORY = 32 << 20
# What a frame on its way, malloc's slack and the threads' stacks may take besides.
SLACK = 40 << 20
TOTAL = 1 << 30
ROWS = 100_000
AGENT = """
import sys
from clonos import _core
from local_agent import start_agent
agent = start_agent(_core.SessionConfig.from_bytes(bytes.fromhex(sys.argv[1])))
print("up", flush=True)
sys.stdin.read()
agent.stop()
"""


@pytest.mark.timeout(600)
def test_logs_stay_inside_the_memory_that_was_set(tmp_path: Path) -> None:
    config = make_config(tmp_path, memory_bytes=MEMORY, disk_bytes=4 << 30, io_timeout_ms=30_000)
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT, config.to_bytes().hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        empty, _ = _processes.memory(process.pid)
        random = np.random.default_rng(1)
        task = open_task(config, _core.ResultTask, "memory")
        sent, batches, mark = 0, [], 0
        while sent < TOTAL:
            values = pa.array(random.random(ROWS))
            rows = pa.array(range(len(batches) * ROWS, (len(batches) + 1) * ROWS))
            task.complete(task.offer([rows]), values)
            before, mark = mark, task.publish()
            task.settle(before)
            batches.append(float(values[0].as_py()))
            sent += 16 * ROWS
        task.settle()
        task.finish()
        _, most = _processes.memory(process.pid)
        assert most - empty <= MEMORY + SLACK, f"{(most - empty) >> 20} MiB"
        again = open_task(config, _core.ResultTask, "memory")
        for number, first in enumerate(batches[:20]):
            rows = pa.array(range(number * ROWS, (number + 1) * ROWS))
            assert again.complete(again.offer([rows]), None)[0].as_py() == first
        again.close()
    finally:
        process.communicate()
