"""The README's example is run as a newcomer would: pasted into a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
EXPECTED_ROWS = 4


@pytest.mark.timeout(180)
def test_the_example_keeps_its_answers_although_a_worker_dies(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(examples) == 1, "the README has one example"
    script = tmp_path / "example.py"
    script.write_text(examples[0])
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = re.findall(r"\|\s*(alpha|beta|gamma|delta)\|\s*0\.\d+", done.stdout)
    assert len(rows) == EXPECTED_ROWS, done.stdout
    asked = re.search(r"^asked: (.*)$", done.stdout, re.MULTILINE)
    assert asked is not None, done.stdout
    # Only the call whose worker died before its answer was stable is made again.
    assert asked[1] == "['alpha', 'beta', 'gamma', 'delta', 'delta']"
