"""The folders of executors' agents: what is left of those that are gone is removed in the end."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clonos._worker import agents

# What a worker finds above it, and whether a sink knows the driver by it.
ASKS = (
    "from clonos._sinks.place import this_driver; from clonos._worker import agents; "
    "print(agents.executor_jvm(), this_driver().started != str(0))"
)


def folder_of(parent: Path, name: str, *, hours: float) -> Path:
    """A folder as an agent leaves it, last used `hours` ago."""
    folder = parent / hashlib.sha256(name.encode()).hexdigest()[:16]
    folder.mkdir()
    (folder / "agent.log").write_text("agent is up")
    (folder / "lock").touch()
    used = time.time() - hours * 3600
    os.utime(folder, (used, used))
    return folder


def test_what_is_left_of_agents_is_removed_after_a_day(tmp_path: Path) -> None:
    old = folder_of(tmp_path, "old", hours=25)
    fresh = folder_of(tmp_path, "fresh", hours=23)
    killed = folder_of(tmp_path, "killed", hours=0)
    living = folder_of(tmp_path, "living", hours=0)
    with socket.socket(socket.AF_UNIX) as serving, socket.socket(socket.AF_UNIX) as dead:
        serving.bind(str(living / "agent.sock"))
        serving.listen()
        # As SIGKILL leaves it: the socket's file is there, and nobody behind it.
        dead.bind(str(killed / "agent.sock"))
        dead.close()
        for folder in (killed, living):
            os.utime(folder, (0, 0))
        (tmp_path / "a file").touch()
        log = tmp_path / "sources" / "a log"
        log.mkdir(parents=True)
        os.utime(log.parent, (0, 0))
        agents.sweep(tmp_path)
    assert log.exists()
    assert living.exists()
    assert fresh.exists()
    assert not old.exists()
    assert not killed.exists()


def test_a_folder_that_another_worker_locks_stays(tmp_path: Path) -> None:
    import fcntl

    old = folder_of(tmp_path, "old", hours=25)
    with (old / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        agents.sweep(tmp_path)
        assert old.exists()
    agents.sweep(tmp_path)
    assert not old.exists()


def test_a_jvm_that_is_the_first_process_of_a_container_is_found(tmp_path: Path) -> None:
    inside = ["unshare", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace of processes can be made here: unshare needs root")
    java = tmp_path / "java"
    shutil.copy(shutil.which("sh") or "/bin/sh", java)
    asks = f"{shlex.quote(sys.executable)} -c '{ASKS}'; true"
    answer = subprocess.run(
        [*inside, str(java), "-c", asks], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["1", "True"], answer.stderr
