"""A driver process of the demo: ``python -m clonos.cli.demo.driver_main '<json of Plan>'``.

Each run has a driver of its own, so that one can be killed whole. It tells the demo what it does by
appending events to a file, which nobody's death closes.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clonos.cli.demo import pipeline, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local-cluster[3,1,1024]"
EVENTS = "events.jsonl"
RESULT = "result.jsonl"
SINK = "sink.sqlite"
# A sink that takes its time, so that a batch has a middle to be killed in.
WRITE_SECONDS = 0.002
WRITES_PER_EVENT = 20
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Plan:
    """What one driver is to do.

    Attributes
    ----------
    kind : str
        ``"batch"`` or ``"stream"``.
    causal : bool
        Under Clonos, or as plain Spark.
    url : str
        The service, with the run's name as path.
    folder : str
        Where this driver's event log and events go.
    shared : str
        Where what outlives the driver goes: sink, checkpoints, recorded determinants.
    words : int
        Size of the text (batch).
    source : str
        Folder of text files (stream).
    files_per_batch : int
        Files in each micro-batch (stream).
    settings : dict
        More Spark settings.
    """

    kind: str
    causal: bool
    url: str
    folder: str
    shared: str
    words: int
    source: str
    files_per_batch: int
    settings: dict[str, str]

    def to_json(self) -> str:
        """The plan as an argument of the driver's process."""
        return json.dumps(asdict(self))


class Events:
    """Tells the demo what happens here: one JSON object per line, from any thread."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / EVENTS).open("a")
        self._lock = threading.Lock()

    def tell(self, event: str, **details: Any) -> None:
        """Append one event; it is with the operating system when this returns."""
        with self._lock:
            self._file.write(json.dumps({"event": event, "at": time.time(), **details}) + "\n")
            self._file.flush()


def main() -> None:
    """Run the plan given on the command line; end with 0, also when Spark aborts the job."""
    plan = Plan(**json.loads(sys.argv[1]))
    events = Events(Path(plan.folder))
    spark = start_spark(plan)
    try:
        events.tell("started")
        (run_batch if plan.kind == "batch" else run_stream)(plan, spark, events)
        events.tell("completed")
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        events.tell("aborted", message=str(error))
    finally:
        spark.stop()


def start_spark(plan: Plan) -> SparkSession:
    """Start a session on three executors; what results depend on is left at its default."""
    from pyspark.sql import SparkSession

    folder = Path(plan.folder)
    logging = f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}"
    builder = SparkSession.builder.master(MASTER).appName("clonos demo")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": logging,
        "spark.executor.extraJavaOptions": logging,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        **plan.settings,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run_batch(plan: Plan, spark: SparkSession, events: Events) -> None:
    """Run the batch job and keep its result as JSON lines."""
    rows = spark.sparkContext.parallelize(text.rows(plan.words), pipeline.MAP_PARTITIONS)
    words = spark.createDataFrame(rows, "line_no int, word_no int, word string")
    with stage_events(spark, events), _epoch(plan, spark):
        if plan.causal:
            job = pipeline.batch_job(words, pipeline.causal_udf(plan.url))
        else:
            job = pipeline.batch_job(words, pipeline.plain_udf(plan.url))
        result = job.collect()
    with (Path(plan.folder) / RESULT).open("w") as file:
        for row in result:
            file.write(json.dumps([f"{row.line_no}:{row.word_no}", row.banned]) + "\n")


@contextlib.contextmanager
def _epoch(plan: Plan, spark: SparkSession) -> Iterator[None]:
    if not plan.causal:
        yield
        return
    with attach(plan, spark).epoch("demo"):
        yield


def attach(plan: Plan, spark: SparkSession) -> Any:
    """Attach Clonos as the README does."""
    import clonos

    return clonos.attach(spark, checkpoint_dir=Path(plan.shared) / "causal", sharing_depth=1)


def run_stream(plan: Plan, spark: SparkSession, events: Events) -> None:
    """Run the streaming query over all files; go on from the checkpoint if there is one."""
    shared = Path(plan.shared)
    lines = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", plan.files_per_batch)
        .load(plan.source)
    )
    write = sink_writer(shared / SINK, events)
    if plan.causal:
        session = attach(plan, spark)
        job = pipeline.stream_job(lines, pipeline.causal_udf(plan.url))
        batch_function = session.foreach_batch(write)
    else:
        job = pipeline.stream_job(lines, pipeline.plain_udf(plan.url))
        batch_function = write
    query = (
        job.writeStream.foreachBatch(batch_function)
        .option("checkpointLocation", str(shared / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def sink_writer(path: Path, events: Events) -> Callable[[DataFrame, int], None]:
    """Make a ``foreachBatch`` function that writes rows to SQLite, each as soon as it can.

    A row that is written again replaces the one before, so that the sink is idempotent. What was
    visible is kept too, in `history`.
    """

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sink:
            sink.execute("pragma journal_mode=wal")
            sink.execute("create table if not exists words (row text primary key, banned int)")
            sink.execute("create table if not exists history (row text, banned int, batch int)")
            for count, row in enumerate(rows, start=1):
                key = f"{row.line_no}:{row.word_no}"
                sink.execute("insert or replace into words values (?, ?)", (key, row.banned))
                sink.execute("insert into history values (?, ?, ?)", (key, row.banned, number))
                time.sleep(WRITE_SECONDS)
                if count % WRITES_PER_EVENT == 0:
                    events.tell("written", batch=number, rows=count, of=len(rows))

    return write


@contextlib.contextmanager
def stage_events(spark: SparkSession, events: Events) -> Iterator[None]:
    """Tell how far each running stage is, while the block runs."""
    tracker = spark.sparkContext.statusTracker()
    done = threading.Event()

    def watch() -> None:
        told: dict[int, tuple[int, int]] = {}
        while not done.wait(POLL_SECONDS):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is None:
                    continue
                state = (info.numActiveTasks, info.numCompletedTasks)
                if told.get(stage) != state:
                    told[stage] = state
                    events.tell(
                        "stage",
                        stage=stage,
                        tasks=info.numTasks,
                        active=info.numActiveTasks,
                        done=info.numCompletedTasks,
                    )

    watcher = threading.Thread(target=watch, name="demo-stages", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


if __name__ == "__main__":
    main()
