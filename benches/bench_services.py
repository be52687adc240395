"""What recording costs per service call, without Spark: an agent and a client in this process.

Beside it, in the same run, what a step costs that is made durable on its own: an SQLite
transaction, and an appended line with fsync.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos import _core
from clonos._services import Scope, current
from local_agent import make_config, open_task, start_agent

BATCH = 10_000
_numbers = itertools.count(1)


class Bench:
    """An agent and a client on this machine."""

    def __init__(self, folder: Path, checkpoint: bool) -> None:
        self.config = make_config(
            folder,
            memory_bytes=512 << 20,
            disk_bytes=16 << 30,
            checkpoint_dir=str(folder / "checkpoint") if checkpoint else None,
            io_timeout_ms=10_000,
        )
        self.agent = start_agent(self.config)
        self.client = _core.Client.connect(self.config, self.config.driver_socket)

    def open(self, kind: Any) -> Any:
        """Open the log of a new task."""
        operator = f"op-{next(_numbers)}"
        return open_task(self.config, kind, operator, self.client, count_occurrences=False)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, checkpoint=False)
    yield made
    made.agent.stop()


@pytest.fixture
def scope(bench: Bench) -> Iterator[Any]:
    task = bench.open(_core.ServiceTask)
    token = current.set(Scope(task))
    yield task
    current.reset(token)


@pytest.mark.benchmark(group="one reading")
@pytest.mark.usefixtures("scope")
def test_time(benchmark: Any) -> None:
    benchmark.pedantic(clonos.time, rounds=50, iterations=20_000)


@pytest.mark.benchmark(group="one reading")
@pytest.mark.usefixtures("scope")
def test_random(benchmark: Any) -> None:
    benchmark.pedantic(clonos.random.random, rounds=50, iterations=20_000)


@pytest.mark.benchmark(group="one call made stable on its own")
def test_call_flushed_each(benchmark: Any, scope: Any) -> None:
    def one() -> None:
        clonos.call(int)
        scope.publish()
        scope.settle()

    benchmark.pedantic(one, rounds=20, iterations=500)


@pytest.mark.benchmark(group="one call made stable on its own")
def test_sqlite_transaction(benchmark: Any, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "log.sqlite", isolation_level=None) as database:
        database.execute("create table log (value text)")
        benchmark.pedantic(
            database.execute, args=("insert into log values ('x')",), rounds=20, iterations=20
        )


@pytest.mark.benchmark(group="one call made stable on its own")
def test_append_and_fsync(benchmark: Any, tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("ab", buffering=0) as file:

        def one() -> None:
            file.write(b"x" * 20)
            os.fsync(file.fileno())

        benchmark.pedantic(one, rounds=20, iterations=20)


@pytest.mark.benchmark(group="a batch of 10000 calls")
def test_services_of_a_batch(benchmark: Any, scope: Any) -> None:
    def batch() -> None:
        for _ in range(BATCH):
            clonos.call(int)
        scope.publish()
        scope.settle()

    benchmark.pedantic(batch, rounds=10, iterations=1)


@pytest.mark.benchmark(group="a batch of 10000 calls")
def test_results_of_a_batch(benchmark: Any, bench: Bench) -> None:
    task = bench.open(_core.ResultTask)
    values = pa.array([row % 2 == 0 for row in range(BATCH)])
    starts = itertools.count(0, BATCH)

    def batch() -> None:
        start = next(starts)
        rows = pa.array(range(start, start + BATCH))
        task.complete(task.offer([rows]), values)
        task.publish()
        task.settle()

    benchmark.pedantic(batch, rounds=10, iterations=1)
