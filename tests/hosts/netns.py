"""Hosts out of network namespaces: a standalone Spark cluster that can be cut into pieces.

Each host has its own network, its own folder for temporary files and one Spark worker; a bridge
joins them with this process, where the driver and the master are. Needs root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import scene

from clonos import testing

_NET = "10.77.19"
DRIVER = f"{_NET}.1"
MASTER_PORT = 7177
_BRIDGE = "clonos-br"
PATIENCE_SECONDS = 60.0
# A line that others fill: packets queue, and some are lost.
_SLOW = "tbf rate 512kbit burst 16kb latency 400ms"
# Spark takes a host for lost after some twelve seconds instead of two minutes.
SOON = {
    "spark.network.timeout": "12s",
    "spark.network.timeoutInterval": "3s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "8000",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "200ms",
}


def why_not() -> str | None:
    """Why there can be no such hosts here; ``None`` if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "network namespaces need iproute2"
    tried = subprocess.run(
        ["ip", "netns", "add", "clonos-try"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"no network namespace can be made: {tried.stderr.strip()}"
    _ip("netns del clonos-try")
    return None


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


def _tc(command: str) -> None:
    subprocess.run(["tc", *command.split()], check=True, capture_output=True)


class Hosts:
    """Hosts `1` to `count`, with a worker of one core each."""

    def __init__(self, count: int) -> None:
        self._numbers = range(1, count + 1)
        # Not below the temporary folder: each host has one of its own.
        self.folder = Path(tempfile.mkdtemp(prefix="clonos-hosts-", dir="/var/tmp"))
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._remove()
        try:
            _ip(f"link add {_BRIDGE} type bridge")
            _ip(f"addr add {DRIVER}/24 dev {_BRIDGE}")
            _ip(f"link set {_BRIDGE} up")
            for host in self._numbers:
                self._join(host)
            self._spark("org.apache.spark.deploy.master.Master", "master", DRIVER)
            for host in self._numbers:
                self.switch_on(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        for host in self._numbers:
            self.switch_off(host)
        for process in self._started:
            process.kill()
            process.wait()
        self._remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove(self) -> None:
        # A namespace is there until its last process has gone; its link must not be.
        links = [f"link del clonos-v{host}" for host in self._numbers]
        names = [f"netns del clonos{host}" for host in self._numbers]
        for command in [*links, *names, f"link del {_BRIDGE}"]:
            subprocess.run(["ip", *command.split()], capture_output=True, check=False)

    def _join(self, host: int) -> None:
        inside = f"-n clonos{host}"
        _ip(f"netns add clonos{host}")
        _ip(f"link add clonos-v{host} type veth peer name eth0 netns clonos{host}")
        _ip(f"link set clonos-v{host} master {_BRIDGE} up")
        _ip(f"{inside} addr add {address(host)}/24 dev eth0")
        _ip(f"{inside} link set eth0 up")
        _ip(f"{inside} link set lo up")

    def _spark(self, main: str, name: str, own: str, *arguments: str, inside: str = "") -> None:
        import pyspark

        place = self.folder / name
        place.mkdir(exist_ok=True)
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), main, "--host", own, *arguments]
        if inside:
            command = ["ip", "netns", "exec", inside, *command]
        else:
            command += ["--port", str(MASTER_PORT), "--webui-port", "0"]
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": own,
            "SPARK_LOCAL_DIRS": str(place),
            "TMPDIR": str(place),
            "PYSPARK_PYTHON": sys.executable,
        }
        with (place / "log").open("ab") as log:
            self._started.append(
                subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )

    def session(self) -> Any:
        """Start a driver of this cluster in this process."""
        os.environ["SPARK_LOCAL_IP"] = DRIVER
        settings = {
            "spark.driver.host": DRIVER,
            "spark.driver.bindAddress": DRIVER,
            "spark.executor.memory": "600m",
            **SOON,
        }
        return scene.start(f"spark://{DRIVER}:{MASTER_PORT}", **settings)

    # What happens to hosts.

    def switch_on(self, host: int) -> None:
        """Start the host's worker."""
        self._spark(
            "org.apache.spark.deploy.worker.Worker",
            f"host{host}",
            address(host),
            *("--cores", "1", "--memory", "1g", "--webui-port", "0"),
            *("--work-dir", str(self.folder / f"host{host}" / "work")),
            f"spark://{DRIVER}:{MASTER_PORT}",
            inside=f"clonos{host}",
        )

    def switch_off(self, host: int) -> None:
        """Kill all that runs on the host, as a power cut does."""
        testing.kill(*self._processes(host))

    def pause(self, host: int) -> None:
        """Stop all that runs on the host, as a machine that swaps or is migrated."""
        for pid in self._processes(host):
            os.kill(pid, signal.SIGSTOP)

    def resume(self, host: int) -> None:
        """Let it go on."""
        for pid in self._processes(host):
            os.kill(pid, signal.SIGCONT)

    def _processes(self, host: int) -> list[int]:
        listed = subprocess.run(
            ["ip", "netns", "pids", f"clonos{host}"], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in listed.stdout.split()]

    def cut_off(self, host: int) -> None:
        """Nothing reaches the host, and nothing leaves it."""
        _ip(f"link set clonos-v{host} down")

    def reconnect(self, host: int) -> None:
        """End what `cut_off` began."""
        _ip(f"link set clonos-v{host} up")

    def silence(self, host: int, other: int) -> None:
        """What `host` sends to `other` does not arrive; the other way it does."""
        _ip(f"-n clonos{host} route add blackhole {address(other)}/32")

    def hear(self, host: int, other: int) -> None:
        """End what `silence` began."""
        _ip(f"-n clonos{host} route del blackhole {address(other)}/32")

    def slow_down(self, host: int) -> None:
        """What goes to the host, and what leaves it, takes its time; some of it gets lost."""
        _tc(f"qdisc add dev clonos-v{host} root {_SLOW}")
        _tc(f"-n clonos{host} qdisc add dev eth0 root {_SLOW}")

    def speed_up(self, host: int) -> None:
        """End what `slow_down` began."""
        _tc(f"qdisc del dev clonos-v{host} root")
        _tc(f"-n clonos{host} qdisc del dev eth0 root")


def address(host: int) -> str:
    """Where a host is; 0 is this process."""
    return f"{_NET}.{host + 10}" if host else DRIVER


def await_workers(spark: Any, count: int) -> None:
    """Wait until as many executors have registered."""
    context = spark.sparkContext._jsc.sc()

    def are_there() -> bool:
        # The driver counts too.
        return bool(context.getExecutorMemoryStatus().size() == count + 1)

    testing.wait_until(are_there, f"{count} executors", PATIENCE_SECONDS)
