"""What stands between clients and an S3 server: answers get lost, late, and are 500 and 503."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

# How often each happens, of all requests.
FAULTS = {
    "503 unasked": 0.06,
    "500 unasked": 0.04,
    # The server has done it, and nobody is told.
    "500 done": 0.05,
    "lost": 0.05,
    "late": 0.03,
}
# Some of these are later than a client's first patience.
LATE_SECONDS = 3.0
SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
BROKEN = b"<Error><Code>InternalError</Code><Message>We encountered an error.</Message></Error>"
OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


class Proxy:
    """Passes requests on to `endpoint`, as they are signed, but for what goes wrong.

    Attributes
    ----------
    seen : collections.Counter
        How often what has happened, and how often a method was answered.
    """

    def __init__(self, endpoint: str, seed: int) -> None:
        self._to = urlsplit(endpoint).netloc
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.seen: Counter[str] = Counter()
        self.is_faulty = True
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                # A client that goes is none of the test's faults.
                with contextlib.suppress(ConnectionError, TimeoutError):
                    super().handle_one_request()
                    return
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return lambda: proxy.answer(self)
                raise AttributeError(name)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()

    def _fault(self) -> str:
        with self._lock:
            drawn = self._random.random() if self.is_faulty else 1.0
            for fault, share in FAULTS.items():
                if drawn < share:
                    self.seen[fault] += 1
                    return fault
                drawn -= share
            return ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Pass one request on, or not, and its answer back, or not."""
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length)
        fault = self._fault()
        if fault == "503 unasked":
            _reply(request, 503, {}, SLOW_DOWN)
            return
        if fault == "500 unasked":
            _reply(request, 500, {}, BROKEN)
            return
        if fault == "late":
            time.sleep(LATE_SECONDS * self._random.random())
        try:
            status, headers, found = self._passed(request, body)
        except (OSError, HTTPException):
            _reply(request, 503, {}, SLOW_DOWN)
            return
        with self._lock:
            self.seen[str(request.command)] += 1
        if fault == "500 done":
            _reply(request, 500, {}, BROKEN)
        elif fault == "lost":
            request.close_connection = True
        else:
            _reply(request, status, headers, found)

    def _passed(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, Any, bytes]:
        server = HTTPConnection(self._to, timeout=30)
        try:
            server.putrequest(
                request.command, request.path, skip_host=True, skip_accept_encoding=True
            )
            # With the host that it was signed for.
            for name, value in request.headers.items():
                if name.lower() not in OF_ONE_HOP:
                    server.putheader(name, value)
            server.putheader("Content-Length", str(len(body)))
            server.endheaders(body)
            answered = server.getresponse()
            return answered.status, dict(answered.getheaders()), answered.read()
        finally:
            server.close()


def _reply(request: BaseHTTPRequestHandler, status: int, headers: Any, body: bytes) -> None:
    request.send_response_only(status)
    for name, value in headers.items():
        if name.lower() not in OF_ONE_HOP:
            request.send_header(name, value)
    is_head = request.command == "HEAD"
    size = headers.get("Content-Length", "0") if is_head else str(len(body))
    request.send_header("Content-Length", size)
    request.end_headers()
    if not is_head:
        request.wfile.write(body)


@contextlib.contextmanager
def before(endpoint: str, seed: int) -> Iterator[Proxy]:
    """Stand before a server until the end."""
    proxy = Proxy(endpoint, seed)
    try:
        yield proxy
    finally:
        proxy.close()
