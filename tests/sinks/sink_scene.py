"""The stage for tests of sinks: rows that come epoch by epoch, and drivers that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 240.0
ROWS_PER_EPOCH = 40
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def start_spark(**settings: str) -> Any:
    """Start Spark and register the sinks."""
    from pyspark.sql import SparkSession

    from clonos._sinks import data_sources

    builder = SparkSession.builder.master("local[2,4]").appName("sink tests")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "Europe/Berlin",
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for source in data_sources():
        spark.dataSource.register(source)
    return spark


def feed(folder: Path, epoch: int, rows: int = ROWS_PER_EPOCH) -> list[int]:
    """Put one epoch of rows where the stream reads; return their ids."""
    source = folder / "in"
    source.mkdir(parents=True, exist_ok=True)
    ids = list(range(epoch * rows, (epoch + 1) * rows))
    draft = folder / f"draft-{epoch}"
    draft.write_text("".join(f'{{"id": {n}, "word": "word {n % 5}"}}\n' for n in ids))
    # Epochs come in the order of the files' times.
    os.utime(draft, (1_000_000 + epoch, 1_000_000 + epoch))
    draft.rename(source / f"{epoch:05d}.json")
    return ids


def stream(spark: Any, folder: Path) -> Any:
    """Read what `feed` wrote, one file per epoch, in two tasks."""
    reader = spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder / "in")).repartition(2)


def begin(df: Any, sink: str, options: dict[str, str], checkpoint: Path, mode: str) -> Any:
    """Start a query that ends when it has read all there is."""
    writer = df.writeStream.format(sink).options(**options).outputMode(mode)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def keyed(padding: int = 0) -> list[str]:
    """Return the columns of a message: a key, and a value of at least `padding` bytes."""
    fields = f"id, word, repeat('x', {padding}) AS padding"
    return ["word AS key", f"to_json(struct({fields})) AS value"]


def run(
    spark: Any,
    sink: str,
    options: dict[str, str],
    folder: Path,
    *,
    checkpoint: str = "checkpoint",
    columns: Sequence[str] = ("*",),
) -> None:
    """Run the query of `folder` over all epochs that are there."""
    rows = stream(spark, folder).selectExpr(*columns)
    begin(rows, sink, options, folder / checkpoint, "append").awaitTermination()


def update(spark: Any, folder: Path, write: Callable[[Any, int], None]) -> None:
    """Count the words of all epochs that are there; `write` takes what changed in each."""
    counts = stream(spark, folder).groupBy("word").count()
    writer = counts.writeStream.foreachBatch(write).outputMode("update")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def forget_commit(checkpoint: Path) -> int:
    """Make Spark run its last epoch again; return which that is."""
    last = max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdecimal())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited too long: {what}"
        time.sleep(0.05)


class DriverProcess:
    """A driver of its own that runs the query of a folder, to be killed with all it started."""

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self.log = folder / f"driver-{time.time_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("sink_driver.py")), json.dumps(plan)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End the driver, its JVM and its Python workers without a warning."""
        for pid in session_of(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the driver to come to its end; return its exit code."""
        return self.process.wait(seconds)

    def said(self) -> str:
        """Return what it printed."""
        return self.log.read_text(errors="replace")


def session_of(leader: int) -> list[int]:
    """Return the processes of a session: PySpark puts its workers in groups of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader:
                found.append(int(entry.name))
    return found


@contextmanager
def driver(
    folder: Path,
    sink: str,
    options: dict[str, str],
    *,
    checkpoint: str = "checkpoint",
    columns: Sequence[str] = ("*",),
) -> Iterator[DriverProcess]:
    """Run a driver; nothing of it is left afterwards."""
    plan = {"folder": str(folder), "sink": sink, "options": options, "checkpoint": checkpoint}
    process = DriverProcess(folder, {**plan, "columns": list(columns)})
    try:
        yield process
    finally:
        process.kill()


def offsets(folder: Path) -> set[int]:
    """Return the epochs that Spark has begun."""
    path = folder / "checkpoint" / "offsets"
    return {int(p.name) for p in path.iterdir() if p.name.isdecimal()} if path.is_dir() else set()


def commits(folder: Path) -> set[int]:
    """Return the epochs that Spark holds to be committed."""
    path = folder / "checkpoint" / "commits"
    return {int(p.name) for p in path.iterdir() if p.name.isdecimal()} if path.is_dir() else set()
