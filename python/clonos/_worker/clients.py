"""What ``setup=`` makes: one for each worker process, kept between its tasks, closed at the end.

PySpark forks its workers, and gives one many tasks in turn. A client is made in the worker at the
first call that needs it. It is closed when no task has used it for `IDLE_SECONDS`, and at once
where Spark ends the worker with its task.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import pickle
import threading
import time
from typing import Any

# Tasks of one job follow each other faster, and Spark ends a worker that idles for a minute.
IDLE_SECONDS = 10.0

_lock = threading.Lock()
_clients: dict[tuple[int, bytes, bool], Client] = {}


class Client:
    """What one ``setup=`` made in this process.

    Coroutine functions get one of their own, together with the event loop that it is bound to.
    """

    def __init__(self, setup: bytes, *, asynchronous: bool) -> None:
        self.runner = asyncio.Runner() if asynchronous else None
        self.users = 0
        self.used_at = 0.0
        self.timer: threading.Timer | None = None
        self._setup = setup
        self._made: Any = None
        self._is_made = False
        self._making: asyncio.Lock | None = None

    def get(self) -> Any:
        """What ``setup=`` returns, made at the first call."""
        if not self._is_made:
            self._made = pickle.loads(self._setup)()
            self._is_made = True
        return self._made

    async def get_in_loop(self) -> Any:
        """As `get`, within the loop; ``setup=`` may be a coroutine function."""
        if self._is_made:
            return self._made
        if self._making is None:
            self._making = asyncio.Lock()
        async with self._making:
            if not self._is_made:
                made = pickle.loads(self._setup)()
                self._made = await made if inspect.isawaitable(made) else made
                self._is_made = True
        return self._made

    def close(self) -> None:
        """Close what was made, if it has ``close()`` or ``aclose()``. Never raises."""
        if self._is_made:
            ways = ("close", "aclose") if self.runner is None else ("aclose", "close")
            close = next(
                (getattr(self._made, way) for way in ways if hasattr(self._made, way)), None
            )
            with contextlib.suppress(Exception):
                closing = None if close is None or self.runner else close()
                if self.runner is not None and close is not None:
                    self.runner.run(_closed(close))
                elif inspect.isawaitable(closing):
                    asyncio.run(_awaited(closing))
        if self.runner is not None:
            with contextlib.suppress(Exception):
                self.runner.close()


async def _closed(close: Any) -> None:
    await _awaited(close())


async def _awaited(closing: Any) -> None:
    if inspect.isawaitable(closing):
        await closing


def lend(setup: bytes, *, asynchronous: bool) -> Client:
    """Return this process's client for a task; give it back with `give_back`."""
    key = (os.getpid(), setup, asynchronous)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = Client(setup, asynchronous=asynchronous)
        client.users += 1
        return client


def give_back(client: Client, *, worker_ends: bool) -> None:
    """A task is done with a client."""
    with _lock:
        client.users -= 1
        client.used_at = time.monotonic()
    if worker_ends or not os.environ.get("SPARK_REUSE_WORKER"):
        _close(client)
    else:
        _wait(client, IDLE_SECONDS)


def _wait(client: Client, seconds: float) -> None:
    """Look after a while whether a client is still in use; one of these looks is under way."""
    with _lock:
        if client.timer is None:
            client.timer = threading.Timer(seconds, _look, [client])
            client.timer.daemon = True
            client.timer.start()


def _look(client: Client) -> None:
    with _lock:
        client.timer = None
        left = client.used_at + IDLE_SECONDS - time.monotonic()
        if client.users:
            # Whoever gives it back looks again.
            return
    if left > 0:
        _wait(client, left)
    else:
        _close(client)


def _close(client: Client) -> None:
    with _lock:
        if client.users or client not in _clients.values():
            return
        for key in [key for key, known in _clients.items() if known is client]:
            del _clients[key]
    client.close()
