"""Replayable sources beside Spark's own ``socket`` source: rows per second, and latency."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Spark's socket source takes time with the square of a batch's rows, so it is given as many as it
# does well with; what is compared is rows per second.
ROWS = {"socket": 40_000, "clonos-socket": 2_000_000}
ROWS_ONCE = 10_000
LINE = b"2026-11-21T05:00:00Z sensor-%07d temperature 21.5 humidity 40.1 ok\n"
LATENCY_LINES = 40


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    import clonos

    builder = SparkSession.builder.master("local[2,4]")
    for name, value in {
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    with clonos.attach(session):
        yield session
    session.stop()


class Server:
    """Sends lines to whoever connects, as fast as they are taken."""

    def __init__(self, rows: int) -> None:
        self._data = b"".join(LINE % number for number in range(rows))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(self._data)
            threading.Event().wait(600)

    def close(self) -> None:
        self._server.close()


def read_all(spark: Any, source: str, folder: Path, rows: int) -> None:
    """Read `rows` lines and hand them to nobody."""
    server = Server(rows)
    reader = spark.readStream.format(source).options(host="127.0.0.1", port=server.port)
    if source == "clonos-socket":
        reader = reader.options(logDir=str(folder), maxRecordsPerBatch=rows)
    query = (
        reader.load().writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )  # fmt: skip
    read = 0
    while read < rows:
        time.sleep(0.02)
        # The last of them has what came last; Spark keeps a hundred.
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
    query.stop()
    server.close()


@pytest.mark.benchmark(group="source: lines (rows per second in extra_info)")
@pytest.mark.parametrize("source", ["socket", "clonos-socket"])
def bench_rows(benchmark: Any, spark: Any, tmp_path: Path, source: str) -> None:
    rounds = iter(range(100))

    def run() -> None:
        folder = tmp_path / str(next(rounds))
        folder.mkdir()
        read_all(spark, source, folder, ROWS[source] if benchmark.enabled else ROWS_ONCE)

    benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    if benchmark.stats:
        benchmark.extra_info["rows per second"] = ROWS[source] / benchmark.stats["median"]


def latency(spark: Any, source: str, folder: Path) -> list[float]:
    """Seconds from sending each of some lines until its result is committed in SQLite."""
    server = socket.create_server(("127.0.0.1", 0))
    reader = spark.readStream.format(source).options(host="127.0.0.1", port=server.getsockname()[1])
    if source == "clonos-socket":
        reader = reader.option("logDir", str(folder))
    database = folder / "results.db"
    with sqlite3.connect(database) as base:
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("CREATE TABLE lines (line TEXT)")

    def write(batch: Any, _number: int) -> None:
        rows = [tuple(row) for row in batch.collect()]
        with sqlite3.connect(database, timeout=30) as base:
            base.executemany("INSERT INTO lines VALUES (?)", rows)

    query = (
        reader.load().writeStream.foreachBatch(write).trigger(processingTime="200 milliseconds")
        .option("checkpointLocation", str(folder / "checkpoint")).start()
    )  # fmt: skip
    connection, _ = server.accept()
    taken = []
    with sqlite3.connect(database, timeout=30) as base:
        for number in range(LATENCY_LINES):
            # Not in step with the trigger.
            time.sleep(0.037)
            sent = time.monotonic()
            connection.sendall(b"%d\n" % number)
            while base.execute("SELECT count(*) FROM lines").fetchone()[0] <= number:
                time.sleep(0.002)
            taken.append(time.monotonic() - sent)
    query.stop()
    connection.close()
    server.close()
    # The first ones pay for what is set up once.
    return sorted(taken[10:])


@pytest.mark.benchmark(group="source: from line sent to result committed")
@pytest.mark.parametrize("source", ["socket", "clonos-socket"])
def bench_latency(benchmark: Any, spark: Any, tmp_path: Path, source: str) -> None:
    times = benchmark.pedantic(latency, args=(spark, source, tmp_path), rounds=1)
    benchmark.extra_info["median latency, s"] = times[len(times) // 2]
    benchmark.extra_info["worst latency, s"] = times[-1]
    print(f"{source}: median {times[len(times) // 2]:.3f} s, worst {times[-1]:.3f} s")
