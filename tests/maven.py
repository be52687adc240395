"""Servers of tests whose jars are fetched from Maven Central the first time."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

# How long fetching may take.
SECONDS = 200
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>jars</artifactId>
<version>1</version><dependencies>{}</dependencies></project>
"""
_DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId>
<version>{}</version></dependency>"""


def jars(server: str, name: str, artifacts: dict[str, str], *, alone: bool = False) -> Path:
    """Return the folder of a server's jars; the test is skipped where they cannot be had.

    Parameters
    ----------
    server : str
        What there is not, in the reason.
    name : str
        Of the folder in the cache: another one for other versions.
    artifacts : dict
        Versions by group and artifact, ``"org.apache.kafka:kafka_2.13"``.
    alone : bool
        Without what they depend on.
    """
    cache = Path.home() / ".cache" / "clonos-tests"
    folder = cache / name
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"no {server}: its jars are not in the cache, and mvn is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    wanted = [_DEPENDENCY.format(*place.split(":"), of) for place, of in artifacts.items()]
    with tempfile.TemporaryDirectory(dir=cache) as draft:
        (Path(draft) / "pom.xml").write_text(_POM.format("".join(wanted)))
        fetch = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        fetch.append(f"-DexcludeTransitive={str(alone).lower()}")
        try:
            subprocess.run(fetch, check=True, cwd=draft, capture_output=True, timeout=SECONDS)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            pytest.skip(f"no {server}: its jars cannot be fetched from Maven Central")
        try:
            (Path(draft) / "jars").rename(folder)
        except OSError:
            assert folder.is_dir(), "somebody else fetched them meanwhile"
    return folder
