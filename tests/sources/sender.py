"""A sender of numbered lines that knows acknowledgements: it goes on behind the last one it got."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, Self

CHUNK = 500


class Sender:
    """Serves ``line 0`` … up to `count`; with `acknowledged` from where the reader is."""

    def __init__(self, count: int, *, acknowledged: bool = True) -> None:
        self.count = count
        self.acknowledged = acknowledged
        self.safe = 0
        # So many lines may be sent now.
        self.allowed = count
        self.sent = 0
        self.connections = 0
        # What each connection was told is safe.
        self.told: list[list[int]] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stopping = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _run(self) -> None:
        while not self._stopping:
            with contextlib.suppress(OSError, ValueError):
                connection, _ = self._server.accept()
                self.connections += 1
                self._welcome(connection)

    def _welcome(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as replies:
            self._serve(connection, replies)

    def _serve(self, connection: socket.socket, replies: Any) -> None:
        if not self.acknowledged:
            connection.sendall(b"".join(b"line %d\n" % n for n in range(self.count)))
            # Whoever connects again is sent all of it again: nobody is to have a reason.
            replies.read()
            return
        first = self.safe = int(replies.readline())
        told = [first]
        self.told.append(told)
        reader = threading.Thread(target=self._read, args=(replies, told), daemon=True)
        reader.start()
        for start in range(first, self.count, CHUNK):
            end = min(start + CHUNK, self.count)
            while end > self.allowed and not self._stopping:
                time.sleep(0.01)
            connection.sendall(b"".join(b"line %d\n" % n for n in range(start, end)))
            self.sent = end
        reader.join()

    def _read(self, replies: Any, told: list[int]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := replies.readline():
                self.safe = int(line)
                told.append(self.safe)


class PatientSender(Sender):
    """Serves any number of receivers at once, and looks after each by itself."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.ended = 0

    def _welcome(self, connection: socket.socket) -> None:
        threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            super()._welcome(connection)
        self.ended += 1
