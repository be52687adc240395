"""The trials: each runs a pipeline, kills something in the middle of it, and judges the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clonos import testing
from clonos.cli.demo import driver_main, pipeline, text
from clonos.cli.demo.processes import Driver
from clonos.cli.demo.server import read_record
from clonos.cli.demo.tasks import read_attempts
from clonos.cli.demo.verdict import Course, Verdict, judge, read_result, read_sink

BATCH_WORDS = 1200
STREAM_WORDS = 900
STREAM_FILES = 6
FILES_PER_BATCH = 3
# The second stage has rows out by then, which Spark cannot take back.
REDUCE_TASKS_BEFORE_KILL = 3
# The first batch is committed; the second is half written.
BATCH_TO_KILL = 1
Say = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """One line of the table to be."""

    name: str
    title: str
    kind: str
    causal: bool
    settings: dict[str, str] = field(default_factory=dict)


TRIALS = [
    Trial("batch-plain", "batch, plain Spark", "batch", causal=False),
    Trial("batch-clonos", "batch, Clonos", "batch", causal=True),
    Trial("stream-plain", "streaming, plain Spark", "stream", causal=False),
    Trial("stream-clonos", "streaming, Clonos", "stream", causal=True),
]


@dataclass(frozen=True)
class World:
    """What the trials share: folders, the service and its record."""

    work: Path
    spark_home: Path
    url: str
    record: Path

    def plan(self, trial: Trial, driver: int) -> driver_main.Plan:
        """What driver number `driver` of a trial is to do."""
        folder = self.work / trial.name
        return driver_main.Plan(
            kind=trial.kind,
            causal=trial.causal,
            url=f"{self.url}/{trial.name}",
            folder=str(folder / f"driver-{driver}"),
            shared=str(folder),
            words=BATCH_WORDS,
            source=str(folder / "text"),
            files_per_batch=FILES_PER_BATCH,
            settings=trial.settings,
        )


@dataclass
class Notes:
    """What is noted while a trial runs; times in seconds since 1970."""

    started: float = 0.0
    ended: float = 0.0
    error: str | None = None
    lost_at: list[float] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    def take(self, event: dict[str, Any]) -> None:
        """Note what an event of a driver says."""
        if event["event"] == "started":
            self.started = self.started or event["at"]
        elif event["event"] == "aborted":
            self.error = event["message"]
        self.ended = event["at"]


def run_trial(trial: Trial, world: World, say: Say) -> Verdict:
    """Run one trial and judge it; `say` is told what goes on."""
    shared = world.work / trial.name
    notes = Notes()
    if trial.kind == "batch":
        rows = {f"{line}:{word}" for line, word, _ in text.rows(BATCH_WORDS)}
        run_batch(trial, world, notes, say)
        seen = read_result(notes.folders[0] / driver_main.RESULT)
    else:
        rows = text.write_files(shared / "text", STREAM_FILES, STREAM_WORDS)
        run_stream(trial, world, notes, say)
        seen = read_sink(shared / driver_main.SINK)
    answers = read_record(world.record, trial.name)
    course = Course(
        error=notes.error,
        seconds=notes.ended - notes.started,
        lost_at=notes.lost_at,
        attempts=read_attempts(notes.folders, answers),
    )
    return judge(trial.title, rows, seen, answers, course, causal=trial.causal)


def run_batch(trial: Trial, world: World, notes: Notes, say: Say) -> None:
    """Run the batch job; kill an executor when the second stage has put rows out."""
    say("starting Spark")
    with Driver(world.plan(trial, 0), world.spark_home) as driver:
        notes.folders.append(driver.folder)
        for event in driver.events():
            notes.take(event)
            if event["event"] == "started":
                say("first stage: asking the service")
            if event["event"] != "stage" or event["tasks"] != pipeline.REDUCE_PARTITIONS:
                continue
            say(f"second stage: {event['done']} of {event['tasks']} tasks done")
            if not notes.lost_at and event["done"] >= REDUCE_TASKS_BEFORE_KILL:
                lost = driver.executors()[0]
                testing.kill(lost.pid)
                notes.lost_at.append(time.time())
                say(f"!executor {lost.id} (process {lost.pid}) killed with SIGKILL")


def run_stream(trial: Trial, world: World, notes: Notes, say: Say) -> None:
    """Run the query; kill everything when half a batch is in the sink; go on after it."""
    say("starting Spark")
    with Driver(world.plan(trial, 0), world.spark_home) as driver:
        notes.folders.append(driver.folder)
        for event in driver.events():
            notes.take(event)
            if event["event"] != "written":
                continue
            say(f"batch {event['batch']}: {event['rows']} of {event['of']} rows written")
            if event["batch"] == BATCH_TO_KILL and event["rows"] * 2 >= event["of"]:
                killed = driver.kill()
                notes.lost_at.append(time.time())
                say(f"!driver and executors ({killed} processes) killed with SIGKILL")
                break
    say("starting Spark again, from the checkpoint")
    with Driver(world.plan(trial, 1), world.spark_home) as driver:
        notes.folders.append(driver.folder)
        for event in driver.events():
            notes.take(event)
            if event["event"] == "written":
                say(f"batch {event['batch']}: {event['rows']} of {event['of']} rows written")
