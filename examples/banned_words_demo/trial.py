"""One run: servers, a driver, kills, samples of the sink while it runs, and the verdict."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chaos import Chaos, Driver, Kill
from check import Verdict, judge, read_counts
from servers import Sender, Service

from clonos import testing

HERE = Path(__file__).parent
SAMPLE_SECONDS = 0.25
# How long nothing may come before a run is taken for stuck.
QUIET_SECONDS = 120.0


@dataclass(frozen=True)
class Plan:
    """What a run is to be."""

    title: str
    script: Path
    seconds: float
    rate: float
    pause: float
    kinds: tuple[str, ...]
    acknowledged: bool
    seed: int


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment; times in seconds since 1970."""

    at: float
    words: int
    safe: int
    answered: int
    counted: int
    newest: float


@dataclass
class Course:
    """What happened in a run."""

    plan: Plan
    begun: float
    samples: list[Sample] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    starts: int = 0
    verdict: Verdict | None = None


def run(plan: Plan, folder: Path, spark_home: Path, show: Callable[[Course], None]) -> Course:
    """Run a plan in a folder of its own; `show` is called with every sample."""
    folder.mkdir(parents=True)
    service = Service()
    sender = Sender(plan.rate, acknowledged=plan.acknowledged, seed=plan.seed)
    command = [sys.executable, str(plan.script), "--port", str(sender.port)]
    command += ["--service", service.serve(), "--folder", str(folder)]
    course = Course(plan, time.time())
    driver = Driver(command, folder, spark_home)
    results = folder / "results.db"

    def sample() -> Sample:
        counts = read_counts(results)
        seen = Sample(
            at=time.time(),
            words=sender.words,
            safe=sender.safe,
            answered=len(service.answers),
            counted=sum(row.count for row in counts),
            newest=max((row.received for row in counts), default=0.0),
        )
        course.samples.append(seen)
        course.starts = driver.starts
        show(course)
        return seen

    def has_moved() -> bool:
        """Whether results have come since the last kill."""
        last = course.kills[-1].at if course.kills else 0.0
        return any(s.counted and s.newest > last for s in course.samples[-1:])

    try:
        sender.start()
        testing.wait_until(lambda: sample().counted, f"first results (see {folder})", 180)
        chaos = Chaos(driver, plan.pause, plan.seed, plan.kinds, has_moved) if plan.kinds else None
        if chaos:
            course.kills = chaos.kills
        end = time.monotonic() + plan.seconds
        while time.monotonic() < end:
            sample()
            time.sleep(SAMPLE_SECONDS)
        if chaos:
            chaos.stop()
        sender.ended = True
        drain(sample, sender, service)
        course.verdict = judge(read_counts(results), sender, service)
    finally:
        driver.stop()
    return course


def drain(sample: Callable[[], Sample], sender: Sender, service: Service) -> None:
    """Wait until all that was sent is in the sink, or nothing has come for a while."""
    quiet_since, before = time.monotonic(), (0, 0)
    # A plain run that has lost lines will never be done.
    patience = QUIET_SECONDS if sender.acknowledged else QUIET_SECONDS / 6
    while time.monotonic() - quiet_since < patience:
        seen = sample()
        if seen.answered >= sender.words and seen.counted >= len(service.kept()):
            return
        if (seen.counted, seen.answered) != before:
            before, quiet_since = (seen.counted, seen.answered), time.monotonic()
        time.sleep(SAMPLE_SECONDS)
