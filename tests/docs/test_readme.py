"""The examples of the README and of the pages are run as a newcomer would: pasted into a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPECTED_ROWS = 4


def run_example(page: Path, folder: Path) -> str:
    """Run the one example of a page; what it prints."""
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(examples) == 1, f"{page.name} has one example"
    script = folder / "example.py"
    script.write_text(examples[0])
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(360)
def test_the_readme_keeps_its_answers_although_a_worker_dies(tmp_path: Path) -> None:
    printed = run_example(ROOT / "README.md", tmp_path)
    rows = re.findall(r"\|\s*(alpha|beta|gamma|delta)\|\s*0\.\d+", printed)
    assert len(rows) == EXPECTED_ROWS, printed
    asked = re.search(r"^asked: (.*)$", printed, re.MULTILINE)
    assert asked is not None, printed
    # Only the call whose worker died before its answer was stable is made again.
    assert asked[1] == "['alpha', 'beta', 'gamma', 'delta', 'delta']"


@pytest.mark.timeout(360)
def test_the_page_on_exchange_runs(tmp_path: Path) -> None:
    run_example(ROOT / "docs" / "exchange.md", tmp_path)


@pytest.mark.timeout(360)
def test_the_page_on_calls_runs(tmp_path: Path) -> None:
    printed = run_example(ROOT / "docs" / "calls.md", tmp_path)
    assert re.search(r"\|alpha\|ALPHA\|NULL\s*\|", printed), printed
    assert re.search(r"\|gamma\|NULL \|HTTPStatusError: ", printed), printed


@pytest.mark.timeout(360)
@pytest.mark.parametrize("page", ["sources.md", "sinks.md", "loops.md"])
def test_the_pages_on_sources_sinks_and_loops_run(tmp_path: Path, page: str) -> None:
    run_example(ROOT / "docs" / page, tmp_path)
