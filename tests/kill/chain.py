"""A chain of operators with exchanges between them, in which everything is nondeterministic.

The first operator asks the clock, the dice and a service once per batch; the second depends on the
order in which batches reach it, and asks again; the third too. Each row carries where its values
come from, so that one pair of eyes on the result can tell whether it is that of one run.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark import TaskContext
from scene import ask

import clonos
from clonos import testing

ROWS = 12_000
SENDERS = 6
MIDDLE = 5
LAST = 4
BATCH_ROWS = 500
SCHEMA = "id long, made string, seen string"


def produce(record: str, pause: float, ballast: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """First operator: what it makes depends on the clock, the dice and the service."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            ids = batch.column(0)
            key = f"made/{ids[0].as_py()}"
            answer = clonos.call(ask, record, key)
            when, dice = clonos.time_ns(), clonos.random.random()
            made = f"{key}={answer!r}@{when}:{dice}:{number}"
            clonos.call(os.urandom, ballast)
            time.sleep(pause)
            columns = [ids, pa.array([made] * len(ids)), pa.array([""] * len(ids))]
            yield pa.RecordBatch.from_arrays(columns, names=["id", "made", "seen"])

    return run


def chained(
    record: str, stage: str, pause: float, ballast: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Make a later operator: what it adds depends on everything that came before, in that order."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = f"{stage}{TaskContext.get().partitionId()}"
        chain = hashlib.sha256()
        for number, batch in enumerate(batches):
            rows = sorted(
                zip(batch.column("id").to_pylist(), batch.column("made").to_pylist(), strict=True)
            )
            before = chain.hexdigest()[:16]
            chain.update(repr(rows).encode())
            key = f"{task}/{before}/{number}"
            clonos.call(os.urandom, ballast)
            if stage != "last" or number % 4 == 0:
                chain.update(repr(clonos.call(ask, record, key)).encode())
            time.sleep(pause)
            seen = [
                f"{old}|{task}:{number}:{before}>{chain.hexdigest()[:16]}"
                for old in batch.column("seen").to_pylist()
            ]
            columns = [batch.column("id"), batch.column("made"), pa.array(seen)]
            yield pa.RecordBatch.from_arrays(columns, names=["id", "made", "seen"])

    return run


def chain(spark: Any, record: str, *, hops: int = 2, pause: float = 0.02, ballast: int = 0) -> Any:
    """Make the DataFrame: `hops` exchanges, so `hops` + 1 stages.

    With `ballast` bytes in each batch's log, frames name logs: they do not bring them.
    """
    df = spark.range(0, ROWS, 1, SENDERS)
    df = clonos.map_in_arrow(df, produce(record, pause, ballast), SCHEMA, uid="first")
    df = clonos.exchange(df, MIDDLE, "id")
    if hops > 1:
        middle = chained(record, "middle", pause, ballast)
        df = clonos.map_in_arrow(df, middle, SCHEMA, uid="middle")
        df = clonos.exchange(df, LAST, "id", "made")
    if hops > 2:
        third = chained(record, "third", pause, ballast)
        df = clonos.map_in_arrow(df, third, SCHEMA, uid="third")
        df = clonos.exchange(df, LAST, "id")
    return clonos.map_in_arrow(df, chained(record, "last", pause, ballast), SCHEMA, uid="last")


@dataclass
class Service:
    """What the service wrote down: all answers by key."""

    path: Path
    answers: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def read(self) -> Self:
        """Read it again from the start."""
        self.answers.clear()
        for line in self.path.read_text().splitlines():
            key, answer = line.split(" ")
            self.answers[key].append(float(answer))
        return self

    @property
    def twice(self) -> list[str]:
        """Keys that were asked about more than once."""
        return [key for key, answers in self.answers.items() if len(answers) > 1]


def check_one_run(rows: list[Any], service: Service) -> None:
    """All rows are there once, and what they say of each step is one story."""
    assert sorted(row.id for row in rows) == list(range(ROWS))
    made: dict[str, str] = {}
    for row in rows:
        key, rest = row.made.split("=", 1)
        assert made.setdefault(key, row.made) == row.made, f"two answers for {key}"
        assert float(rest.split("@")[0]) in service.answers[key], f"an answer nobody gave: {key}"
    steps: dict[tuple[int, str, str], str] = {}
    members: dict[tuple[int, str, str], list[tuple[int, str]]] = defaultdict(list)
    for row in rows:
        for place, step in enumerate(row.seen.split("|")[1:]):
            stage_and_number, hashes = step.rsplit(":", 1)
            before, after = hashes.split(">")
            at = (place, stage_and_number, before)
            assert steps.setdefault(at, after) == after, f"two versions of {at}"
            members[at].append((row.id, row.made))
    check_steps(steps, members, service)


def check_steps(
    steps: dict[tuple[int, str, str], str],
    members: dict[tuple[int, str, str], list[tuple[int, str]]],
    service: Service,
) -> None:
    """Each step's hash is that of its rows and of an answer that was given for it."""
    inner: dict[tuple[int, str, str], Any] = {}
    for (place, stage_and_number, before), after in steps.items():
        stage, number = stage_and_number.rsplit(":", 1)
        rows = repr(sorted(members[place, stage_and_number, before])).encode()
        inner[place, stage_and_number, before] = (stage, int(number), before, rows, after)
    starts = [step for step in inner.values() if step[1] == 0]
    assert starts, "no step is the first"
    followed = 0
    for start in starts:
        # A task's steps follow one another: the whole chain is computed again from its rows.
        digest, step = hashlib.sha256(), start
        while step is not None:
            stage, number, before, rows, after = step
            assert digest.hexdigest()[:16] == before
            digest.update(rows)
            if not stage.startswith("last") or number % 4 == 0:
                key = f"{stage}/{before}/{number}"
                digest = _with_answer(digest, service.answers[key], after)
            assert digest.hexdigest()[:16] == after, f"step {number} of {stage} is of another run"
            followed += 1
            place = next(at[0] for at, found in inner.items() if found is step)
            step = inner.get((place, f"{stage}:{number + 1}", after))
    assert followed == len(inner), "steps that follow nothing"


def _with_answer(digest: Any, answers: list[float], after: str) -> Any:
    for answer in answers:
        tried = digest.copy()
        tried.update(repr(answer).encode())
        if tried.hexdigest()[:16] == after:
            return tried
    return digest


class RandomKiller:
    """Kills what `choose` says at random times while a job runs, `times` times at most."""

    def __init__(
        self,
        spark: Any,
        seed: int,
        times: int,
        within: float,
        choose: Callable[[random.Random, list[testing.Executor]], list[int]],
    ) -> None:
        self._spark = spark
        self._random = random.Random(seed)
        self._times = times
        self._within = within
        self._choose = choose
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.struck = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        for _ in range(self._times):
            if self._over.wait(self._random.uniform(0.05, self._within)):
                return
            pids = self._choose(self._random, testing.executors(self._spark))
            if pids:
                testing.kill(*pids)
                self.struck += 1
