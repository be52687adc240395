"""The service of the demo: a real HTTP server that says whether a word is banned, today.

What is banned changes every `PERIOD_SECONDS`, as such lists do. Every answer given is kept in a
file, one JSON object per line, by which the runs are judged: nothing in Spark can touch it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TextIO
from urllib.parse import parse_qs, urlsplit

PERIOD_SECONDS = 2.0
# As long as a service close by takes to answer.
ANSWER_SECONDS = 0.003
BANNED_OF_256 = 77


@dataclass(frozen=True)
class Answer:
    """One answer the server gave: to which run, row and task, and when (seconds since 1970)."""

    run: str
    row: str
    task: int
    word: str
    banned: bool
    at: float
    key: str


def is_banned_at(word: str, seconds: float) -> bool:
    """Whether a word is banned at a time: about three words in ten are, other ones each period."""
    period = int(seconds / PERIOD_SECONDS)
    return hashlib.sha256(f"{period}/{word}".encode()).digest()[0] < BANNED_OF_256


def read_record(path: Path, run: str) -> list[Answer]:
    """Answers given to one run, in the order given."""
    with path.open() as file:
        answers = (Answer(**json.loads(line)) for line in file if line.endswith("\n"))
        return [answer for answer in answers if answer.run == run]


class Handler(BaseHTTPRequestHandler):
    """``GET /<run>/banned?word=<word>`` answers ``true`` or ``false``."""

    protocol_version = "HTTP/1.1"
    # Answers are one small packet each; waiting for more to send would cost 40 ms.
    disable_nagle_algorithm = True
    record: TextIO
    lock = threading.Lock()

    def do_GET(self) -> None:
        """Answer, and keep the answer before it is sent."""
        url = urlsplit(self.path)
        word = parse_qs(url.query).get("word", [""])[0]
        time.sleep(ANSWER_SECONDS)
        now = time.time()
        banned = is_banned_at(word, now)
        answer = {
            "run": url.path.split("/")[1],
            "row": self.headers.get("X-Row", ""),
            "task": int(self.headers.get("X-Task", "-1")),
            "word": word,
            "banned": banned,
            "at": now,
            "key": self.headers.get("Idempotency-Key", ""),
        }
        with self.lock:
            self.record.write(json.dumps(answer) + "\n")
            self.record.flush()
        body = json.dumps(banned).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the record is kept in `do_GET`."""


class Server(ThreadingHTTPServer):
    """One thread per connection, and so per Python worker."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients are killed here on purpose."""


def main() -> None:
    """Serve until standard input closes, which it does when the demo ends, however it ends."""
    with Path(sys.argv[1]).open("a") as record:
        Handler.record = record
        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
