"""Which task attempts there were, read from Spark's own event log."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clonos.cli.demo.server import Answer

FIRST, AGAIN, REPLAYED = "ran", "ran again", "replayed"


@dataclass(frozen=True)
class Attempt:
    """One attempt of a task; times in seconds since 1970.

    `place` says which task it is an attempt of, the same in every driver: micro-batch (empty in a
    batch job), ordinal of the stage in it, and partition. `kind` is one of `FIRST`, `AGAIN` and
    `REPLAYED`.
    """

    place: tuple[str, int, int]
    task: int
    driver: int
    executor: str
    start: float
    end: float
    ok: bool
    asks: bool = False
    kind: str = FIRST


def read_attempts(folders: Iterable[Path], answers: list[Answer]) -> list[Attempt]:
    """All attempts in the event logs of drivers that ran one after the other, classified.

    An attempt of a task that asks the service is a replay if the task was attempted before, the
    attempt succeeded and the service's record has no question of it.
    """
    attempts: list[Attempt] = []
    for number, folder in enumerate(folders):
        for log in sorted(folder.glob("app-*")):
            attempts.extend(_Log(number).read(log))
    return _classify(attempts, answers)


class _Log:
    """Reader of one event log."""

    def __init__(self, driver: int) -> None:
        self._driver = driver
        self._stages: dict[int, tuple[str, int]] = {}
        self._ordinals: dict[str, dict[int, int]] = defaultdict(dict)
        self._attempts: dict[int, Attempt] = {}
        self._ended: set[int] = set()
        self._last = 0.0

    def read(self, log: Path) -> list[Attempt]:
        with log.open() as file:
            for line in file:
                # The log of a killed driver ends anywhere.
                if line.endswith("\n"):
                    self._take(json.loads(line))
        return [
            attempt if task in self._ended else replace(attempt, end=max(self._last, attempt.start))
            for task, attempt in self._attempts.items()
        ]

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["Event"]
        if kind == "SparkListenerJobStart":
            self._take_job(event)
        elif kind in ("SparkListenerTaskStart", "SparkListenerTaskEnd"):
            self._take_task(event, ended=kind.endswith("End"))

    def _take_job(self, event: dict[str, Any]) -> None:
        batch = event.get("Properties", {}).get("streaming.sql.batchId", "")
        for info in sorted(event["Stage Infos"], key=lambda info: info["Stage ID"]):
            # Spark numbers a stage anew in each job that needs it; its last RDD stays the same.
            last_rdd = max(rdd["RDD ID"] for rdd in info["RDD Info"])
            ordinals = self._ordinals[batch]
            ordinal = ordinals.setdefault(last_rdd, len(ordinals))
            self._stages[info["Stage ID"]] = (batch, ordinal)

    def _take_task(self, event: dict[str, Any], *, ended: bool) -> None:
        info = event["Task Info"]
        batch, stage = self._stages.get(event["Stage ID"], ("", event["Stage ID"]))
        task = info["Task ID"]
        start, finish = info["Launch Time"] / 1000, info["Finish Time"] / 1000
        self._attempts[task] = Attempt(
            place=(batch, stage, info.get("Partition ID", info["Index"])),
            task=task,
            driver=self._driver,
            executor=info["Executor ID"],
            start=start,
            end=finish,
            ok=ended and not info["Failed"] and not info["Killed"],
        )
        self._last = max(self._last, start, finish)
        if ended:
            self._ended.add(task)


def _classify(attempts: list[Attempt], answers: list[Answer]) -> list[Attempt]:
    """Say of each attempt whether it was the first, ran again, or replayed what was recorded."""
    asked = _questions(attempts, answers)
    asking_stages = {a.place[:2] for a in attempts if (a.driver, a.task) in asked}
    seen: set[tuple[str, int, int]] = set()
    classified = []
    for attempt in sorted(attempts, key=lambda a: (a.driver, a.start, a.task)):
        asks = attempt.place[:2] in asking_stages
        kind = FIRST
        if attempt.place in seen:
            silent = asks and attempt.ok and (attempt.driver, attempt.task) not in asked
            kind = REPLAYED if silent else AGAIN
        seen.add(attempt.place)
        classified.append(replace(attempt, asks=asks, kind=kind))
    return classified


def _questions(attempts: list[Attempt], answers: list[Answer]) -> set[tuple[int, int]]:
    """(driver, task) of the attempts that the service was asked by.

    Task numbers begin again in the next driver, so time decides which one asked.
    """
    begins: dict[int, float] = {}
    for attempt in attempts:
        begins[attempt.driver] = min(begins.get(attempt.driver, attempt.start), attempt.start)
    return {
        (max((d for d, begin in begins.items() if begin <= answer.at), default=0), answer.task)
        for answer in answers
    }
