"""Use an installed clonos where nothing else is: no Spark, no pandas, no source tree.

Run by `make wheel-smoke` with the Python of an environment that holds the wheel and its
dependencies only. An assertion that fails ends it non-zero.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import time
import tomllib
import uuid
from pathlib import Path

import clonos

# Subclasses of PySpark's classes cannot be without it.
SPARK_CLASSES = {"ReplayableSource"}


def check_installation() -> None:
    """The package comes from this environment, complete, and has not brought Spark with it."""
    package = Path(clonos.__file__).parent
    assert package.is_relative_to(sys.prefix), f"clonos was imported from {package}"
    assert (package / "py.typed").is_file(), "py.typed is missing from the wheel"
    assert importlib.util.find_spec("pyspark") is None, "pyspark must stay an extra"
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())[
        "project"
    ]
    assert importlib.metadata.version("clonos") == project["version"]
    for name in clonos.__all__:
        # PySpark's absence is looked at above; what subclasses it cannot be there.
        if name in SPARK_CLASSES:
            continue
        assert hasattr(clonos, name), f"clonos.{name} is in __all__ but does not exist"


def check_services() -> None:
    """Outside a causal task each service is the plain thing."""
    assert abs(clonos.time() - time.time()) < 5
    assert abs(clonos.time_ns() - time.time_ns()) < 5e9
    assert 0.0 <= clonos.random.random() < 1.0
    assert isinstance(clonos.uuid4(), uuid.UUID)
    assert len(clonos.token_bytes(16)) == 16
    assert clonos.call(divmod, 7, 2) == (3, 1)


def check_decorator() -> None:
    """Outside Spark a causal function is the plain function."""

    @clonos.causal("boolean", uid="smoke")
    def is_short(word: str) -> bool:
        return len(word) < 4

    assert is_short("cat") is True
    assert is_short("horse") is False


def check_command() -> None:
    """The console script says which extra it needs: workers do without."""
    command = Path(sys.executable).parent / "clonos"
    shown = subprocess.run([command, "--help"], check=False, capture_output=True, text=True)
    assert shown.returncode == 1
    assert "pip install 'clonos[cli]'" in shown.stderr, shown.stderr


if __name__ == "__main__":
    for check in (check_installation, check_services, check_decorator, check_command):
        check()
        print(f"ok: {(check.__doc__ or '').splitlines()[0]}")
