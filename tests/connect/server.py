"""A Spark Connect server with executors of its own, as `start-connect-server.sh` starts one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from clonos import _processes
from clonos._driver.java import ensure_java

START_SECONDS = 90.0
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Server:
    """One server, until `kill`."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        ensure_java()
        self.port = port or free_port()
        self._log = folder / f"server-{time.monotonic_ns()}.log"
        home = Path(pyspark.__file__).parent
        arguments = {
            "spark.connect.grpc.binding.port": self.port,
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": folder / "warehouse",
            "spark.sql.artifact.isolation.enabled": "true",
        }
        command = [home / "bin" / "spark-submit", "--master", "local-cluster[2,1,1024]"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for name, value in arguments.items():
            command += ["--conf", f"{name}={value}"]
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONNECT_MODE": "0",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*map(str, command), "spark-internal"],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
            )
        self._await_start()

    def _await_start(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while "Spark Connect server started at" not in self._log.read_text(errors="replace"):
            lives = self._process.poll() is None and time.monotonic() < deadline
            assert lives, self._log.read_text(errors="replace")[-4000:]
            time.sleep(0.2)

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def executors(self) -> list[int]:
        """Process ids of the executors."""
        ours = (p for p in _processes.pids() if _processes.parent(p) == self._process.pid)
        return [pid for pid in ours if EXECUTOR in _processes.command(pid)]

    def kill(self) -> None:
        """Lose the driver and its executors at once."""
        lost = [self._process.pid, *self.executors()]
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
        self._process.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
