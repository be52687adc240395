"""Programs that are run in several processes, each of which hashes texts otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def printed(program: Path, seeds: int = 2) -> set[str]:
    """Return all that the program printed; a thousand times its seed is its only argument."""
    return {
        subprocess.run(
            [sys.executable, str(program), str(seed * 1000)],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(1, seeds + 1)
    }
