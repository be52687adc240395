"""Write the lock files: exact versions of everything that `make` installs.

The versions are resolved by pip from `pyproject.toml` (run this on the oldest Python that is
supported, so that the result installs on all of them). Only names and versions are written, no
addresses, so that the files work behind any package mirror.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {
    "requirements-dev.lock": (
        "spark",
        "connect",
        "cli",
        "demo",
        "metrics",
        "postgresql",
        "kafka",
        "delta",
        "dev",
    ),
    "requirements-java.lock": ("java",),
    "requirements-wheel.lock": ("wheel",),
}
# Installed beside nothing else, so without what the project itself depends on.
ALONE = {("java",), ("wheel",)}


def requirements(extras: tuple[str, ...]) -> list[str]:
    """Return what the project and the given extras ask for; some are asked for alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plain = [] if extras in ALONE else list(project["dependencies"])
    return plain + [line for extra in extras for line in project["optional-dependencies"][extra]]


def resolve(wanted: list[str]) -> list[str]:
    """Return `name==version` lines for `wanted` and all that it pulls in, sorted."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["--quiet", "--report", "-", *wanted]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = [item["metadata"] for item in report["install"]]
    return sorted(f"{one['name'].lower().replace('_', '-')}=={one['version']}" for one in found)


def main() -> None:
    """Resolve and write every lock file."""
    for name, extras in LOCKS.items():
        lines = resolve(requirements(extras))
        version = ".".join(map(str, sys.version_info[:2]))
        head = (
            f"# Written by `make lock` (pip on Python {version}) from pyproject.toml: do not edit."
        )
        (ROOT / name).write_text("\n".join([head, *lines]) + "\n")
        print(f"{name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
