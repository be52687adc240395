"""The process beside the driver of a Spark Connect server: attached as a classic program is.

It ends with the driver's JVM. Clients come and go; what they had open stays until somebody begins
it anew.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDoneError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clonos import _processes
from clonos._connect.answering import FAILED, GATEWAY, SOCKET, process_name
from clonos._connect.batches import batch_of
from clonos._temporary import write_private
from clonos._worker.place import BATCH_QUERY
from clonos.errors import ConfigError

POLL_SECONDS = 0.2
#: How long a client may take to have the JVM opened.
GATEWAY_SECONDS = 120.0
# How long a request waits for what it asks, before it is to come again.
PATIENCE_SECONDS = 5.0
# Requests that are worked on at a time: some wait for a store.
REQUESTS_MAX = 64
# Answers that are kept for requests that Spark repeats.
ANSWERS_MAX = 1_024
_REMOTE = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE")


def main() -> None:
    """Run until the driver's JVM ends: arguments are the folder and the JVM's process id."""
    folder, jvm = Path(sys.argv[1]), int(sys.argv[2])
    settings = json.loads(sys.stdin.read())
    started = _processes.started_at(jvm)

    def lives() -> bool:
        return _processes.alive(jvm) and _processes.started_at(jvm) == started

    try:
        session = _attached(folder, settings, lives)
        _listen(folder, Host(session, process_name(os.getpid())))
    except Exception as error:
        write_private(folder / FAILED, json.dumps(_told(error)).encode())
        raise
    while lives():
        time.sleep(POLL_SECONDS)
    with suppress(Exception):
        session.stop()
    shutil.rmtree(folder, ignore_errors=True)
    # Threads may wait for a JVM that is gone.
    os._exit(0)


def _attached(folder: Path, settings: dict[str, Any], lives: Callable[[], bool]) -> Any:
    gateway = folder / GATEWAY
    deadline = time.monotonic() + GATEWAY_SECONDS
    while not gateway.exists():
        if not lives() or time.monotonic() > deadline:
            message = "the driver's JVM was not opened by the client in time"
            raise TimeoutError(message)
        time.sleep(POLL_SECONDS)
    port, token = gateway.read_text(encoding="utf-8").split()
    gateway.unlink()
    import clonos

    return clonos.attach(_classic_session(port, token), **settings)


def _classic_session(port: str, token: str) -> Any:
    """Return a session of the JVM behind a gateway, as a program has that Spark has started."""
    for name in _REMOTE:
        os.environ.pop(name, None)
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = port, token
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.sql import SparkSession

    launch: Any = java_gateway.launch_gateway
    gateway = launch()
    jvm = gateway.jvm
    scala_context = jvm.org.apache.spark.SparkContext.getOrCreate()
    SparkContext._ensure_initialized(gateway=gateway)
    context = SparkContext(
        gateway=gateway,
        jsc=jvm.JavaSparkContext(scala_context),
        conf=SparkConf(_jvm=jvm, _jconf=scala_context.getConf()),
    )
    # One of its own: what is set in it is no client's.
    known = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    return SparkSession(context, jsparkSession=known.newSession())


class Host:
    """Answers requests, each of which may come more than once.

    Parameters
    ----------
    session : clonos.Session
    process : str
        Name of this process. What was meant for the one before in this folder is not for it.
    """

    def __init__(self, session: Any, process: str) -> None:
        self._session = session
        self._process = process
        self._agent = session._agent
        self._lock = threading.Lock()
        self._asked: OrderedDict[str, Future[Any]] = OrderedDict()
        self._pool = ThreadPoolExecutor(REQUESTS_MAX, thread_name_prefix="clonos-request")
        # Runs of the named epochs that are open, whichever client began them.
        self._stamps: dict[str, int] = {}
        # Names that are being begun or left.
        self._busy: set[str] = set()
        self._is_free = threading.Condition()
        self._answers: dict[str, Callable[..., Any]] = {
            "config": self._config,
            "batch": self._batch,
            "begin": self._begin,
            "leave": self._leave,
            "check": session.check,
            "commit": session.commit,
            "stats": self._agent.stats,
            "savepoint": session.savepoint,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, or that it is to come again."""
        if request["process"] != self._process:
            return {"gone": "another process is in its place"}
        with self._lock:
            asked = self._asked.get(request["id"])
            if asked is None:
                work = self._answers[request["what"]]
                asked = self._pool.submit(work, *request["arguments"])
                self._asked[request["id"]] = asked
                self._forget()
        try:
            return {"answer": asked.result(PATIENCE_SECONDS)}
        except NotDoneError as error:
            if not asked.done():
                return {"later": True}
            return _told(error)
        except Exception as error:  # noqa: BLE001, it is the client's
            return _told(error)

    def _forget(self) -> None:
        """Drop the oldest answers past the limit; whoever has none yet asks again."""
        over = len(self._asked) - ANSWERS_MAX
        if over > 0:
            done = (id_ for id_, asked in self._asked.items() if asked.done())
            for id_ in list(itertools.islice(done, over)):
                del self._asked[id_]

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Alone with an epoch: one that is begun must not be committed with the run before it."""
        with self._is_free:
            self._is_free.wait_for(lambda: name not in self._busy)
            self._busy.add(name)
        try:
            yield
        finally:
            with self._is_free:
                self._busy.discard(name)
                self._is_free.notify_all()

    def _begin(self, name: str, stamp: int) -> None:
        with self._turn(name):
            # A client that died leaves none, and nobody can tell it from one that is slow.
            self._stamps[name] = stamp
            self._agent.begin_run(BATCH_QUERY, name, stamp)

    def _leave(self, name: str, stamp: int, is_committed: bool) -> None:
        with self._turn(name):
            if self._stamps.get(name) != stamp:
                message = f"epoch {name!r} was begun by another client since, and is that one's"
                raise ConfigError(message, "CONFIG")
            del self._stamps[name]
            self._agent.end_run(BATCH_QUERY, name)
            if is_committed:
                self._session.check(BATCH_QUERY, name)
                self._session.commit(BATCH_QUERY, name)

    def _batch(self, user: str, session: str, frame: str) -> tuple[str, int, int]:
        """Query of a batch, its SQL execution, and which attempt at its function this is."""
        # Before anything of it is recorded, or decided.
        self._session.watch_streams()
        found = batch_of(self._session.spark, user, session, frame)
        if found is None:
            message = "the stream of this foreachBatch function was not found: it may have ended"
            raise ConfigError(message, "CONFIG")
        return *found, self._session.next_attempt()

    def _config(self) -> str:
        return base64.b64encode(self._session.config.to_bytes()).decode()


def _told(error: Exception) -> dict[str, Any]:
    return {
        "error": getattr(error, "message", str(error)),
        "kind": type(error).__name__,
        "condition": getattr(error, "condition", None),
    }


def _listen(folder: Path, host: Host) -> None:
    listener = socket.socket(socket.AF_UNIX)
    made = folder / f"{SOCKET}.new"
    made.unlink(missing_ok=True)
    listener.bind(str(made))
    listener.listen()
    made.rename(folder / SOCKET)

    def accept() -> None:
        while True:
            # No more files or threads, for now: who asks comes again.
            try:
                connection, _ = listener.accept()
                threading.Thread(target=_converse, args=(connection, host), daemon=True).start()
            except (OSError, RuntimeError):
                time.sleep(POLL_SECONDS)

    threading.Thread(target=accept, name="clonos-host", daemon=True).start()


def _converse(connection: socket.socket, host: Host) -> None:
    with (
        suppress(OSError, ValueError),
        connection,
        connection.makefile("rw", encoding="utf-8") as lines,
    ):
        request = json.loads(lines.readline())
        try:
            answered = host.answer(request)
        except Exception as error:  # noqa: BLE001, it is the client's
            answered = _told(error)
        lines.write(json.dumps(answered) + "\n")
        lines.flush()


if __name__ == "__main__":
    main()
