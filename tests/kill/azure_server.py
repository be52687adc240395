"""A server for the tests that speaks as Azure Blob Storage does: Azurite."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
import urllib.request
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from xml.etree import ElementTree as ET

import store_server
from store_server import BUCKET

VERSION = "3.37.0"
API = "2021-12-02"
ACCOUNT = "clonostests"
SECRET = base64.b64encode(b"the key of an account of tests").decode()


class Server(store_server.Server):
    """The server."""

    url = f"abfss://{BUCKET}@{ACCOUNT}.dfs.core.windows.net"
    secret = SECRET

    def prepare(self) -> None:
        make = ("install", "--prefix", "{}", "--no-audit", "--no-fund", f"azurite@{VERSION}")
        program = "node_modules/.bin/azurite-blob"
        self._program = store_server.built(f"azurite-{VERSION}", program, make, tool="npm")

    def command(self) -> Sequence[str | Path]:
        quiet = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
        return [self._program, "--blobPort", str(self.port), "--location", self.data, *quiet]

    @property
    def environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{SECRET}"}

    def start(self) -> None:
        super().start()
        if not self.data.joinpath("made").exists():
            self._ask("PUT", {"restype": "container"})
            self.data.joinpath("made").touch()

    @property
    def options(self) -> dict[str, str]:
        endpoint = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        return {"endpoint": endpoint, "account_name": ACCOUNT, "account_key": SECRET}

    @property
    def objects(self) -> dict[str, int]:
        found: dict[str, int] = {}
        marker = ""
        while True:
            query = {"comp": "list", "marker": marker, "restype": "container"}
            listed = ET.fromstring(self._ask("GET", query))
            for blob in listed.iter("Blob"):
                found[blob.findtext("Name", "")] = int(
                    blob.findtext("Properties/Content-Length", "0")
                )
            marker = listed.findtext("NextMarker") or ""
            if not marker:
                return found

    def _ask(self, method: str, query: dict[str, str]) -> bytes:
        """A request about the container, signed with the account's key."""
        query = {name: value for name, value in sorted(query.items()) if value}
        path = f"/{ACCOUNT}/{BUCKET}"
        headers = {"x-ms-date": formatdate(time.time(), usegmt=True), "x-ms-version": API}
        lines = [f"{name}:{value}" for name, value in headers.items()]
        asked = [f"{name}:{value}" for name, value in query.items()]
        # Eleven headers that are not sent, and the account once more.
        signed = "\n".join([method, *[""] * 11, *lines, f"/{ACCOUNT}{path}", *asked])
        key = hmac.new(base64.b64decode(SECRET), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(key).decode()}"
        url = f"http://127.0.0.1:{self.port}{path}?" + "&".join(
            f"{name}={value}" for name, value in query.items()
        )
        request = urllib.request.Request(url, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            content: bytes = answer.read()
            return content
