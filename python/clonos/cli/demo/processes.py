"""The processes of the demo: the service, and the drivers that are started, watched and killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from clonos import testing
from clonos.cli.demo import driver_main

SECONDS_MAX = 180.0
_LOG4J = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
"""


@contextlib.contextmanager
def service(record: Path) -> Iterator[str]:
    """Run the HTTP service, keeping its record in `record`; gives its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "clonos.cli.demo.server", str(record)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = process.stdout.readline().strip() if process.stdout else ""
        if not port:
            raise RuntimeError("the demo's HTTP server did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        # It serves until its standard input ends.
        process.communicate(timeout=10)


def spark_home(folder: Path) -> Path:
    """Make a ``SPARK_HOME`` of links, so that Spark's working files are not put among its own.

    ``local-cluster`` puts the executors' files below ``SPARK_HOME``, and nothing says otherwise.
    """
    import pyspark

    home = folder / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in ("work", "logs"):
            (home / entry.name).symlink_to(entry)
    return home


class Driver:
    """A driver process of its own process group; what it writes goes to files in its folder."""

    def __init__(self, plan: driver_main.Plan, spark_home: Path) -> None:
        self.folder = Path(plan.folder)
        self.folder.mkdir(parents=True)
        (self.folder / "log4j2.properties").write_text(_LOG4J)
        self._events = self.folder / driver_main.EVENTS
        self._events.touch()
        self._read_to = 0
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # What is compiled for long lives only delays JVMs that live for half a minute.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        with (self.folder / "stderr.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "clonos.cli.demo.driver_main", plan.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Leave nothing running, whatever happened."""
        self.kill()

    def events(self) -> Iterator[dict[str, Any]]:
        """Events as they come, until the driver has ended.

        Raises
        ------
        TimeoutError
            If the driver says nothing for `SECONDS_MAX`.
        """
        while True:
            ended = self._process.poll() is not None
            yield from self._new_events()
            if ended:
                return
            testing.wait_until(
                lambda: (
                    self._process.poll() is not None or self._events.stat().st_size > self._read_to
                ),
                f"news of the driver (see {self.folder / 'stderr.txt'})",
                SECONDS_MAX,
            )

    def _new_events(self) -> Iterator[dict[str, Any]]:
        with self._events.open("rb") as file:
            file.seek(self._read_to)
            for line in file:
                # A line without its end is being written, or its writer was killed.
                if not line.endswith(b"\n"):
                    return
                self._read_to += len(line)
                yield json.loads(line)

    def executors(self) -> list[testing.Executor]:
        """Executors of this driver that run now."""
        return testing.executors(self.pid)

    def kill(self) -> int:
        """Kill the driver and all that belongs to it; gives the number of processes killed."""
        if self._process.poll() is not None:
            return 0
        killed = testing.kill_tree(self.pid)
        self._process.wait()
        return len(killed)
