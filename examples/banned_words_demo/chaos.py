"""The driver's process, and what kills parts of it at random times."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clonos import testing

KINDS = ("worker", "executor", "driver", "receiver")
# What is killed how often: losing the driver costs the most time.
WEIGHTS = (4, 3, 1, 1)


@dataclass(frozen=True)
class Kill:
    """One kill: what, and when (seconds since 1970)."""

    what: str
    at: float


class Driver:
    """A pipeline in a process group of its own, started again whenever it ends."""

    def __init__(self, command: list[str], folder: Path, spark_home: Path) -> None:
        self.starts = 0
        self._command = command
        self._log = folder / "driver.log"
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        while not self._stopping.is_set():
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
            self.starts += 1
            self._process.wait()
            self._stopping.wait(0.2)

    @property
    def pid(self) -> int:
        """Process id of the driver that runs, or 0."""
        return self._process.pid if self._process and self._process.poll() is None else 0

    def stop(self) -> None:
        """End it for good."""
        self._stopping.set()
        if self.pid:
            testing.kill_tree(self.pid)
        self._keeper.join(timeout=20)

    def kill(self, what: str, dice: random.Random) -> bool:
        """Kill one process of a kind, if there is one; the driver goes with all that is its own."""
        if not self.pid:
            return False
        if what == "driver":
            return bool(testing.kill_tree(self.pid))
        if what == "receiver":
            victims = receivers(self._command)
        else:
            executors = testing.executors(self.pid)
            victims = [executor.pid for executor in executors]
            if what == "worker":
                victims = [worker for jvm in victims for worker in testing.python_workers(jvm)]
        if victims:
            testing.kill(dice.choice(victims))
        return bool(victims)


def receivers(command: list[str]) -> list[int]:
    """Return receivers whose log is in the folder that a driver's command names."""
    folder = command[command.index("--folder") + 1].encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"receiver_main" in line and folder in line:
                found.append(int(entry.name))
    return found


class Chaos:
    """Kills something now and then."""

    def __init__(
        self,
        driver: Driver,
        pause: float,
        seed: int,
        kinds: tuple[str, ...],
        ready: Callable[[], bool],
    ) -> None:
        self.kills: list[Kill] = []
        self._driver = driver
        self._pause = pause
        self._kinds = kinds
        self._ready = ready
        self._dice = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        weights = [WEIGHTS[KINDS.index(kind)] for kind in self._kinds]
        while not self._stopping.wait(self._dice.uniform(0.3, 1.7) * self._pause):
            what = self._dice.choices(self._kinds, weights)[0]
            # A driver killed while it comes up would only measure how long Spark takes to start.
            if what == "driver" and not self._ready():
                continue
            if self._driver.kill(what, self._dice):
                self.kills.append(Kill(what, time.time()))

    def stop(self) -> None:
        """Kill no more."""
        self._stopping.set()
        self._thread.join()
