"""Programs that are started again and choose their rows by what is pickled otherwise then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(360)
DRIVER = Path(__file__).with_name("filter_driver.py")


def test_a_program_that_is_started_again_has_its_rows_by_whatever_it_chooses_them(
    tmp_path: Path,
) -> None:
    runs = [
        subprocess.run(
            [sys.executable, str(DRIVER), str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [9, 0], [run.stderr[-2_000:] for run in runs]
    alike = [line for line in runs[1].stdout.splitlines() if line.endswith(" alike")]
    assert len(alike) == 7, runs[1].stdout
