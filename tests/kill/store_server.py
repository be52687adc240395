"""Real servers of object stores for tests, each over a folder: they can be killed and come back."""

from __future__ import annotations

import abc
import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from clonos import testing

BUCKET = "checkpoints"
BUILD_SECONDS = 900

AnyServer = TypeVar("AnyServer", bound="Server")


def built(name: str, file: str, make: Sequence[str], *, tool: str, where: str = "") -> Path:
    """What `make` makes of a server, once for this user; where that fails the test is skipped.

    Args:
        name: Of the server, with its version.
        file: What is wanted of the folder.
        make: The command, with ``{}`` for the folder.
        tool: What runs it, perhaps in the folder `where`.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = root / "clonos-tests" / name
    wanted = folder / file
    if wanted.exists():
        return wanted
    found = shutil.which(tool) or shutil.which(tool, path=where)
    if found is None:
        pytest.skip(f"there is no {tool} here to get {name} with, an object store")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [found, *(word.format(folder) for word in make)],
        env={**os.environ, "GOBIN": str(folder)},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"{name}, an object store, cannot be had: {done.stderr.strip()[-300:]}")
    return wanted


def built_by_go(module: str, version: str) -> Path:
    """As `built`, of a command that is a Go module."""
    name = module.rsplit("/", 1)[-1]
    make = ("install", f"{module}@{version}")
    return built(f"{name}-{version}", name, make, tool="go", where="/usr/local/go/bin")


class Server(abc.ABC):
    """A server, on a port of its own."""

    # How its URLs begin, and what must be shown nowhere.
    url: str
    secret: str

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self._log = folder / "server.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self.prepare()
        self.start()

    def prepare(self) -> None:
        """Make what is there before it starts."""
        (self.data / BUCKET).mkdir()

    @abc.abstractmethod
    def command(self) -> Sequence[str | Path]:
        """What starts it."""

    @property
    def environment(self) -> dict[str, str]:
        """What it finds in its environment."""
        return {}

    @property
    @abc.abstractmethod
    def options(self) -> dict[str, str]:
        """What ``storage_options`` says of it."""

    def settings(self, prefix: str = "logs", **changes: Any) -> dict[str, Any]:
        """Arguments of ``clonos.attach``."""
        url = f"{self.url}/{prefix}"
        return {"checkpoint_dir": url, "storage_options": self.options, **changes}

    @property
    def objects(self) -> dict[str, int]:
        """Objects that are in the bucket, with their sizes in bytes."""
        bucket = self.data / BUCKET
        # One that goes meanwhile is none.
        with contextlib.suppress(FileNotFoundError):
            files = (path for path in bucket.rglob("*") if path.is_file())
            return {str(path.relative_to(bucket)): path.stat().st_size for path in files}
        return self.objects

    def start(self) -> None:
        """Start it; returns when it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        testing.wait_until(self._listens, "an object store to listen")

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """Kill it, whatever it is at."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def away(self, seconds: float) -> None:
        """Kill it, and start it again later."""
        self.kill()
        time.sleep(seconds)
        self.start()


@contextlib.contextmanager
def running(kind: type[AnyServer], folder: Path) -> Iterator[AnyServer]:
    """Start a server whose data is in `folder`; it ends in the end."""
    server = kind(folder)
    try:
        yield server
    finally:
        server.kill()
