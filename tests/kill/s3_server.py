"""A real S3 server for the tests: versitygw, over a folder; it can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clonos import testing

MODULE = "github.com/versity/versitygw/cmd/versitygw"
VERSION = "v1.8.0"
BUILD_SECONDS = 900
BUCKET = "checkpoints"
ACCESS = "an-access-key"
SECRET = "a-very-secret-key"


def binary() -> Path:
    """Build the server, once for this user; skip the test where that cannot be done."""
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = root / "clonos-tests" / f"versitygw-{VERSION}"
    built = folder / "versitygw"
    if built.exists():
        return built
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("there is no Go here to build versitygw, the S3 server, with")
    done = subprocess.run(
        [go, "install", f"{MODULE}@{VERSION}"],
        env={**os.environ, "GOBIN": str(folder)},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"versitygw, the S3 server, cannot be built: {done.stderr.strip()[-300:]}")
    return built


class Server:
    """The server, on a port of its own."""

    def __init__(self, folder: Path) -> None:
        self._binary = binary()
        self._data = folder / "data"
        (self._data / BUCKET).mkdir(parents=True)
        self._accounts = folder / "accounts"
        self._accounts.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as found:
            self._port = found.getsockname()[1]
        self._log = folder / "server.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def options(self) -> dict[str, str]:
        """What ``storage_options`` says of it."""
        return {
            "endpoint": f"http://127.0.0.1:{self._port}",
            "region": "us-east-1",
            "access_key_id": ACCESS,
            "secret_access_key": SECRET,
        }

    def settings(self, prefix: str = "logs", **changes: Any) -> dict[str, Any]:
        """Arguments of ``clonos.attach``."""
        url = f"s3://{BUCKET}/{prefix}"
        return {"checkpoint_dir": url, "storage_options": self.options, **changes}

    @property
    def files(self) -> list[Path]:
        """Objects that are in the bucket."""
        # One that goes meanwhile is none.
        with contextlib.suppress(FileNotFoundError):
            return [path for path in (self._data / BUCKET).rglob("*") if path.is_file()]
        return self.files

    def start(self) -> None:
        """Start it; returns when it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._binary, "--port", f"127.0.0.1:{self._port}", "--quiet"),
                    *("--iam-dir", self._accounts, "--iam-cache-disable", "posix", self._data),
                ],
                env={**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        testing.wait_until(self._listens, "the S3 server to listen")

    def admin(self, *command: str) -> None:
        """Run a command of the server's administration."""
        endpoint = ("--endpoint-url", f"http://127.0.0.1:{self._port}")
        root = ("--access", ACCESS, "--secret", SECRET)
        done = subprocess.run(
            [self._binary, "admin", *root, *endpoint, *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
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
def running(folder: Path) -> Iterator[Server]:
    """Start a server whose data is in `folder`; it ends in the end."""
    server = Server(folder)
    try:
        yield server
    finally:
        server.kill()
