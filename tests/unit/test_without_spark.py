"""The package is imported by processes and installations that have no PySpark."""

from __future__ import annotations

import subprocess
import sys

# `make wheel-smoke` does it in an environment that truly lacks it; this one is at hand.
PROGRAM = """
import sys
from importlib.machinery import PathFinder

finders = [finder for finder in sys.meta_path if finder is not PathFinder]

class WithoutSpark:
    @staticmethod
    def find_spec(name, path=None, target=None):
        absent = name.partition(".")[0] in {"pyspark", "pandas"}
        return None if absent else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [*finders, WithoutSpark]

import clonos

for name in clonos.__all__:
    # A subclass of PySpark's.
    if name != "ReplayableSource":
        getattr(clonos, name)
assert "pyspark" not in sys.modules
"""


def test_all_names_are_there_without_pyspark() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
