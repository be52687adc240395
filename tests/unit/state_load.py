"""Loads agents with keyed state, without Spark: what memory they take, and if all of it is right.

``python tests/unit/state_load.py KEYS MEMORY_MIB KEYS_PER_EPOCH PARTITIONS [recover]``

With ``recover`` an agent is killed once all keys are there, and another takes its place: how long
epochs of a thousand keys take before, then, and after.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from clonos import _core, _processes
from local_agent import make_config, open_task

KEYS = pa.schema([("user", pa.int64())])
VALUES = pa.schema([("count", pa.int64()), ("text", pa.string())])
DRIVER = """
import sys
from clonos import _core
from local_agent import start_agent
agent = start_agent(_core.SessionConfig.from_bytes(bytes.fromhex(sys.argv[1])))
print(agent.addr, flush=True)
sys.stdin.read()
agent.stop()
"""
EXECUTOR = """
import sys
from clonos import _core
config = _core.SessionConfig.from_bytes(bytes.fromhex(sys.argv[1]))
print("starts", flush=True)
_core.run_executor_agent(config, int(sys.argv[2]), sys.argv[3], sys.argv[4])
"""


class AgentProcess(NamedTuple):
    """An executor's agent in a process of its own."""

    process: subprocess.Popen[str]
    socket: str

    def most(self) -> int:
        """Return how many bytes it had in memory at the most."""
        return _processes.memory(self.process.pid)[1]


class Load:
    """An application with some executors, each with an agent."""

    def __init__(self, folder: Path, memory: int, partitions: int, executors: int = 2) -> None:
        config = make_config(
            folder,
            local=False,
            sharing_depth=1,
            memory_bytes=memory,
            disk_bytes=64 << 30,
            io_timeout_ms=30_000,
        )
        self._driver = _start([DRIVER, config.to_bytes().hex()])
        assert self._driver.stdout is not None
        self.config = config.with_driver_addr(self._driver.stdout.readline().strip())
        self._folder, self._partitions = folder, partitions
        self.agents = [self.executor(number) for number in range(executors)]
        self._epoch = 0

    def executor(self, number: int) -> AgentProcess:
        """Start an executor's agent."""
        own = self._folder / f"executor-{number}"
        own.mkdir()
        data = self.config.to_bytes().hex()
        process = _start([EXECUTOR, data, str(self._driver.pid), str(own), str(number)])
        socket = own / "agent.sock"
        while not socket.exists():
            assert process.poll() is None
            time.sleep(0.01)
        return AgentProcess(process, str(socket))

    def stop(self) -> None:
        """End all processes."""
        for agent in self.agents:
            agent.process.kill()
            agent.process.communicate()
        self._driver.communicate()

    def epoch(self, keys: np.ndarray) -> int:
        """Count each key once more, all in one epoch; how many had been counted before."""
        ids = np.frombuffer(_core.partition_ids([pa.array(keys)], self._partitions), "<u4")
        work = [(part, keys[ids == part]) for part in range(self._partitions)]
        with ThreadPoolExecutor(len(self.agents)) as pool:
            shares = [work[at :: len(self.agents)] for at in range(len(self.agents))]
            counted = sum(pool.map(self._tasks, self.agents, shares))
        self._epoch += 1
        return counted

    def _tasks(self, agent: AgentProcess, share: list[tuple[int, np.ndarray]]) -> int:
        client = _core.Client.connect(self.config, agent.socket)
        return sum(self._task(client, partition, keys) for partition, keys in share)

    def _task(self, client: _core.Client, partition: int, keys: np.ndarray) -> int:
        task = open_task(
            self.config,
            _core.ServiceTask,
            "load",
            client,
            epoch=self._epoch,
            partition=partition,
            stage=self._epoch,
            token=1,
            named=True,
        )
        state = _core.StateTask.open(
            task,
            query="q",
            operator="load",
            epoch=self._epoch,
            partition=partition,
            partitions=self._partitions,
            keys=KEYS,
            variables=[("count", "value", None, VALUES, 0)],
        )
        _, _, distinct = state.group([pa.record_batch({"user": keys})], [0])
        state.load()
        users = distinct.column(0).to_numpy()
        numbers, _, values = state.values(0)
        before = np.zeros(len(users), np.int64)
        before[numbers.to_numpy()] = values.field(0).to_numpy()
        text = pa.array(users).cast(pa.string())
        assert values.field(1).equals(text.take(numbers))
        rows = pa.StructArray.from_arrays([pa.array(before + 1), text], fields=list(VALUES))
        every = pa.array(np.arange(len(users), dtype=np.int32))
        state.write(0, every, pa.array(np.zeros(len(users), np.uint8)), values=rows)
        state.commit()
        task.publish()
        task.finish()
        return int(before.sum())


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
        text=True,
    )


def run(folder: Path, keys: int, memory: int, batch: int, partitions: int) -> None:
    """Put all keys there, touch some at random, read all."""
    load = Load(folder, memory, partitions)
    begun = time.monotonic()
    try:
        ends = [*range(batch, keys, batch), keys]
        for start, end in zip([0, *ends], ends, strict=False):
            assert load.epoch(np.arange(start, end)) == 0
        told(load, f"{keys} keys put, {keys / (time.monotonic() - begun):.0f}/s")
        begun = time.monotonic()
        random = np.random.default_rng(1)
        counts = np.ones(keys, np.int64)
        for _ in range(5):
            some = np.unique(random.integers(0, keys, batch))
            assert load.epoch(some) == counts[some].sum()
            counts[some] += 1
        told(load, f"touched, {5 * batch / (time.monotonic() - begun):.0f}/s")
        for start, end in zip([0, *ends], ends, strict=False):
            assert load.epoch(np.arange(start, end)) == counts[start:end].sum()
        told(load, "all right")
    finally:
        load.stop()


def recover(folder: Path, keys: int, memory: int, batch: int, partitions: int) -> None:
    """Put all keys there, and lose an agent."""
    load = Load(folder, memory, partitions)
    random = np.random.default_rng(1)

    def timed(what: str, since: float) -> None:
        load.epoch(np.unique(random.integers(0, keys, 1_000)))
        print(f"{what}: {(time.monotonic() - since) * 1e3:.0f} ms", flush=True)

    try:
        ends = [*range(batch, keys, batch), keys]
        for start, end in zip([0, *ends], ends, strict=False):
            assert load.epoch(np.arange(start, end)) == 0
        told(load, f"{keys} keys put")
        for _ in range(10):
            timed("before", time.monotonic())
        lost = load.agents.pop(0)
        since = time.monotonic()
        lost.process.kill()
        timed("when one is lost", since)
        timed("after that", time.monotonic())
        load.agents.append(load.executor(9))
        begun = time.monotonic()
        for _ in range(40):
            timed(f"{time.monotonic() - begun:.1f} s after another came", time.monotonic())
            time.sleep(0.2)
        told(load, "another has come")
        lost.process.communicate()
    finally:
        load.stop()


def told(load: Load, what: str) -> None:
    """Print what agents have taken so far."""
    most = [f"{agent.most() / (1 << 20):.0f}" for agent in load.agents]
    stats = json.loads(_core.cluster_stats(load.config))
    held = {
        key: [agent.get(key) for agent in stats["agents"]]
        for key in ("memory_bytes", "spilled_bytes")
    }
    print(f"{what}; agents took {', '.join(most)} MiB; {held}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        number, mib, per_epoch, tasks = (int(argument) for argument in sys.argv[1:5])
        what = recover if sys.argv[5:] == ["recover"] else run
        what(Path(directory), number, mib << 20, per_epoch, tasks)
