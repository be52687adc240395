"""The ``clonos`` command, and what it stands on: the extra, Java, processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clonos import _processes, cli
from clonos._driver import java
from clonos._temporary import private_folder, write_private
from clonos.cli.inspection import sessions


@pytest.mark.parametrize("package", sorted(cli.PACKAGES))
def test_without_its_packages_the_command_says_what_to_install(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import clonos.cli; clonos.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'clonos[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_library_needs_neither_the_command_nor_spark() -> None:
    code = (
        "import sys, clonos, clonos.functions, clonos.errors; "
        "print({'rich', 'typer', 'pyspark', 'prometheus_client'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_java_is_looked_for_in_one_place(tmp_path: Path) -> None:
    script = Path(java.__file__)
    fake = tmp_path / "home" / "bin" / "java"
    fake.parent.mkdir(parents=True)
    fake.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    fake.chmod(0o755)
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={"JAVA_HOME": str(tmp_path / "home"), "PATH": os.defpath},
    )
    assert done.stdout.strip() == str(tmp_path / "home")
    fake.write_text("#!/bin/sh\necho 'openjdk version \"11.0.1\"' >&2\n")
    # Without the site packages there is no wheel of Java either.
    done = subprocess.run(
        [sys.executable, "-S", str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={"JAVA_HOME": str(tmp_path / "home"), "PATH": os.defpath},
    )
    assert done.returncode == 1
    assert "Java 17" in done.stderr


def test_processes_are_told_apart() -> None:
    code = "print('up', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        # Only then is it the program that was asked for.
        assert child.stdout.readline() == b"up\n"
        assert _processes.alive(child.pid)
        assert _processes.parent(child.pid) == os.getpid()
        assert child.pid in _processes.pids()
        assert _processes.command(child.pid)[1:] == ["-c", code]
        assert Path(_processes.executable(child.pid)).samefile(sys.executable)
        assert int(_processes.started_at(child.pid)) >= int(_processes.started_at(os.getpid()))
        child.kill()
        child.wait()
    assert not _processes.alive(child.pid)
    assert (_processes.parent(child.pid), _processes.started_at(child.pid)) == (0, "0")
    now, most = _processes.memory(os.getpid())
    assert 0 < now <= most


def test_what_another_version_left_behind_is_passed_over() -> None:
    folder = private_folder("0123456789abcdef")
    try:
        write_private(folder / "session", b"of another version")
        found = sessions()
    finally:
        shutil.rmtree(folder)
    assert all(config.app_id for config in found)
