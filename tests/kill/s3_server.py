"""A real S3 server for the tests: versitygw."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import store_server
from store_server import BUCKET

MODULE = "github.com/versity/versitygw/cmd/versitygw"
VERSION = "v1.8.0"
ACCESS = "an-access-key"
SECRET = "a-very-secret-key"


class Server(store_server.Server):
    """The server."""

    url = f"s3://{BUCKET}"
    secret = SECRET

    def prepare(self) -> None:
        super().prepare()
        self._binary = store_server.built_by_go(MODULE, VERSION)
        self._accounts = self.data.with_name("accounts")
        self._accounts.mkdir()

    def command(self) -> Sequence[str | Path]:
        return [
            *(self._binary, "--port", f"127.0.0.1:{self.port}", "--quiet"),
            *("--iam-dir", self._accounts, "--iam-cache-disable", "posix", self.data),
        ]

    @property
    def environment(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "region": "us-east-1",
            "access_key_id": ACCESS,
            "secret_access_key": SECRET,
        }

    def admin(self, *command: str) -> None:
        """Run a command of the server's administration."""
        endpoint = ("--endpoint-url", f"http://127.0.0.1:{self.port}")
        root = ("--access", ACCESS, "--secret", SECRET)
        done = subprocess.run(
            [self._binary, "admin", *root, *endpoint, *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Start a server whose data is in `folder`; it ends in the end."""
    with store_server.running(Server, folder) as server:
        yield server
