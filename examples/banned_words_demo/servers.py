"""The world around the pipeline: a sender of lines and a service that bans words, with records."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

WORDS = [f"word{number}" for number in range(40)]
WORDS_PER_LINE = 4
# The list of banned words is another one each period, as such lists are.
PERIOD_SECONDS = 3.0
ANSWER_SECONDS = 0.002
BANNED_OF_256 = 77


@dataclass
class Service:
    """Answers ``GET /banned?word=``; under a key it answers always as it did first."""

    answers: dict[str, tuple[str, bool, float]] = field(default_factory=dict)
    asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, word: str, key: str) -> bool:
        """Return whether a word is banned, and remember it under the key."""
        time.sleep(ANSWER_SECONDS)
        with self.lock:
            self.asked += 1
            # Who sends no key is answered afresh each time.
            key = key or f"call {self.asked}"
            if key not in self.answers:
                now = time.time()
                seed = f"{int(now / PERIOD_SECONDS)}/{word}"
                banned = hashlib.sha256(seed.encode()).digest()[0] < BANNED_OF_256
                self.answers[key] = (word, banned, now)
            return self.answers[key][1]

    def kept(self) -> list[tuple[str, float]]:
        """Return words that were not banned when first asked for, with the time of the answer."""
        with self.lock:
            return [(word, at) for word, banned, at in self.answers.values() if not banned]

    def serve(self) -> str:
        """Serve in threads of this process; gives the URL."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                word = parse_qs(urlsplit(self.path).query).get("word", [""])[0]
                banned = service.ask(word, self.headers.get("Idempotency-Key", ""))
                body = json.dumps(banned).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: Any) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_arguments: Any) -> None:
                """Say nothing: clients are killed here on purpose."""

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/banned"


class Sender:
    """Sends lines at a steady rate; with `acknowledged`, those that were not safe again.

    Lines are numbered by what came before them. A reader of ``clonos-socket`` says how many are
    safe; Spark's own ``socket`` says nothing, so what it lost on its way is lost.
    """

    def __init__(self, rate: float, *, acknowledged: bool, seed: int) -> None:
        self.rate = rate
        self.acknowledged = acknowledged
        self.lines: list[str] = []
        self.safe = 0
        self.at = 0
        self.ended = False
        self._dice = random.Random(seed)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._connection: socket.socket | None = None

    @property
    def port(self) -> int:
        """Where it serves."""
        return int(self._server.getsockname()[1])

    @property
    def words(self) -> int:
        """Words in all lines so far."""
        return len(self.lines) * WORDS_PER_LINE

    def start(self) -> None:
        """Make lines and serve them, each in a thread."""
        for work in (self._make, self._serve):
            threading.Thread(target=work, daemon=True).start()

    def _make(self) -> None:
        begun = time.monotonic()
        while not self.ended:
            while len(self.lines) < (time.monotonic() - begun) * self.rate:
                self.lines.append(" ".join(self._dice.choices(WORDS, k=WORDS_PER_LINE)))
            time.sleep(0.01)

    def _serve(self) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError):
                connection, _ = self._server.accept()
                with connection, connection.makefile("rb") as replies:
                    self._feed(connection, replies.readline)

    def _feed(self, connection: socket.socket, next_reply: Callable[[], bytes]) -> None:
        if self.acknowledged:
            self.at = self.safe = int(next_reply())
        threading.Thread(target=self._listen, args=(connection, next_reply), daemon=True).start()
        while True:
            until = len(self.lines)
            if until > self.at:
                text = "".join(f"{line}\n" for line in self.lines[self.at : until])
                connection.sendall(text.encode())
                self.at = until
            time.sleep(0.02)

    def _listen(self, connection: socket.socket, next_reply: Callable[[], bytes]) -> None:
        """Read acknowledgements, until the other side is gone."""
        with contextlib.suppress(OSError, ValueError):
            while reply := next_reply():
                self.safe = int(reply)
        # Wakes the other thread: without it the next line would be sent to nobody.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
