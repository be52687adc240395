"""Credentials that expire: what a machine of a cloud gives to programs, each time other ones."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import s3_server

# Clients ask again five minutes before the end that they are told.
TOLD_SECONDS = 302
# When the server knows them no more.
KNOWN_SECONDS = 7.0
TOKEN = "of this machine"


class Keys:
    """Hands out accounts of a server, as a service for containers does, and takes them back.

    Attributes
    ----------
    given : int
        Accounts that were handed out.
    """

    def __init__(self, server: s3_server.Server, folder: Path) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._known: list[tuple[float, str]] = []
        self.given = 0
        self._token = folder / "token.txt"
        self._token.write_text(TOKEN)
        keys = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.headers.get("Authorization") == TOKEN
                body = json.dumps(keys.next()).encode() if is_known else b"{}"
                self.send_response_only(200 if is_known else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._over = threading.Event()
        for work in (self._http.serve_forever, self._forget):
            threading.Thread(target=work, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """What a container's environment says of it."""
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{self._http.server_address[1]}/",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(self._token),
        }

    def next(self) -> dict[str, str]:
        """Another account."""
        access, secret = f"key-{secrets.token_hex(6)}", secrets.token_hex(16)
        self._server.admin("create-user", "-a", access, "-s", secret, "-r", "admin")
        with self._lock:
            self.given += 1
            self._known.append((time.monotonic() + KNOWN_SECONDS, access))
        until = datetime.now(UTC) + timedelta(seconds=TOLD_SECONDS)
        return {
            "AccessKeyId": access,
            "SecretAccessKey": secret,
            "Token": "",
            "Expiration": until.isoformat(timespec="seconds").replace("+00:00", "Z"),
        }

    def _forget(self) -> None:
        while not self._over.wait(0.5):
            with self._lock:
                gone = [access for until, access in self._known if until < time.monotonic()]
                self._known = [one for one in self._known if one[1] not in gone]
            for access in gone:
                self._server.admin("delete-user", "-a", access)

    def close(self) -> None:
        """Hand out no more."""
        self._over.set()
        self._http.shutdown()
        self._http.server_close()


@contextlib.contextmanager
def of(server: s3_server.Server, folder: Path) -> Iterator[Keys]:
    """Hand out accounts of a server until the end."""
    keys = Keys(server, folder)
    try:
        yield keys
    finally:
        keys.close()
