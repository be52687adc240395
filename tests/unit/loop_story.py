"""A query with a loop, told by dice: drivers that die anywhere, come late, or are taken back.

Spark is a dictionary here: the offsets of each batch, and which is committed. What the loop is told
and asked is what Spark tells and asks it.
"""

from __future__ import annotations

import pickle
import random
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from clonos._loops.folder import LoopFolder
from clonos._loops.sink import LoopTarget
from clonos._loops.source import LoopOptions, LoopReader, ReadAllAvailable, ReadMaxRows
from clonos._sinks import durable, place
from clonos._sinks.fence import Claim, Driver
from clonos._sinks.options import Options
from clonos._sinks.place import Place
from clonos.errors import EpochFenced

QUERY = "the-query"
SCHEMA = StructType().add("token", StringType())
# Batches that the story's Spark keeps.
RETAINED = 3
ACTIONS = 25
DEATHS = ("planned", "logged", "read", "staged", "committing", "shown")


class Died(Exception):
    """The driver is killed here."""


@dataclass
class Run:
    """A driver, and its reader."""

    driver: Driver
    name: str
    reader: LoopReader


@dataclass
class Pending:
    """What a driver was about to commit when it was paused."""

    run: Run
    number: int
    staged: list[Any]
    tokens: list[str]


class Story:
    """One query over one loop; `finish` says whether each row came back once, and later."""

    def __init__(self, folder: Path, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.dice = random.Random(seed)
        self.root = folder / f"loop-{seed}"
        self.folder = LoopFolder(self.root)
        self.log: dict[int, Any] = {}
        self.last = -1
        # What counts: of each epoch what was shown first, of each batch what it read.
        self.wrote: dict[int, list[str]] = {}
        self.read: dict[int, list[str]] = {}
        self.paused: list[Pending] = []
        self.drivers = 0
        self.goes_on = True
        self.batch = 0
        self.syncs: int | None = None
        self.run = self.start()
        patch.setattr(place, "streaming_task", lambda: (QUERY, self.batch))
        patch.setattr(place, "run", lambda: self.run.name)
        patch.setattr(durable, "sync", self._sync)
        patch.setattr("os.fsync", lambda _file: None)

    def _sync(self, _path: Path) -> None:
        if self.syncs is not None:
            self.syncs -= 1
            if self.syncs < 0:
                raise Died

    def start(self) -> Run:
        self.drivers += 1
        driver = Driver("host", self.drivers, str(self.drivers))
        options = LoopOptions.read({"path": str(self.root)})
        return Run(driver, uuid.uuid4().hex, LoopReader(options, SCHEMA, RETAINED))

    def target(self) -> LoopTarget:
        return LoopTarget(Options("clonos-loop", {"path": str(self.root)}, ()), SCHEMA)

    def act(self) -> None:
        roll = self.dice.random()
        if roll < 0.5:
            self.attempt(None)
        elif roll < 0.7:
            self.attempt(self.dice.choice(DEATHS))
        elif roll < 0.8:
            self.attempt("paused")
        elif roll < 0.95:
            self.wake()
        else:
            self.go_back()

    def attempt(self, death: str | None) -> bool:
        """Run the next batch; a driver that dies is followed by another."""
        try:
            return self.run_batch(death)
        except Died:
            self.syncs = None
            self.run = self.start()
            return True

    def run_batch(self, death: str | None) -> bool:
        number = self.batch = self.last + 1
        reader = self.run.reader
        start = self.log[number - 1] if number else reader.initialOffset()
        if number not in self.log:
            if number:
                reader.commit(start)
            limit = ReadMaxRows(3) if self.dice.random() < 0.3 else ReadAllAvailable()
            # Some batches begin when nothing is old enough to come back.
            too_young = self.goes_on and self.dice.random() < 0.25
            end = start if too_young else reader.latestOffset(start, limit)
            if end == start and (not self.goes_on or self.dice.random() < 0.2):
                return False
            self.die_if(death == "planned")
            self.log[number] = dict(end)
            # As Spark does.
            self.log.pop(number - RETAINED - 1, None)
        self.die_if(death == "logged")
        rows = self.rows(start, self.log[number])
        assert self.read.setdefault(number, rows) == rows, "a batch that ran again read other rows"
        self.die_if(death == "read")
        self.write(number, rows, death)
        self.last = number
        return True

    @staticmethod
    def die_if(now: bool) -> None:
        if now:
            raise Died

    def rows(self, start: Any, end: Any) -> list[str]:
        pieces = self.run.reader.partitions(start, end)
        # An executor has a copy.
        reader = pickle.loads(pickle.dumps(self.run.reader))
        batches = [batch for piece in pieces for batch in reader.read(piece)]
        return [token for batch in batches for token in batch.column("token").to_pylist()]

    def write(self, number: int, rows: list[str], death: str | None) -> None:
        """Send back what came in, and new rows; each attempt would send others."""
        sent = [row for row in rows if self.dice.random() < 0.5] if self.goes_on else []
        fresh = self.dice.choice([0, 0, 1, 4]) if self.goes_on else 0
        tokens = [uuid.uuid4().hex for _ in range(len(sent) + fresh)]
        tasks = self.dice.randint(1, 3)
        staged = [self.stage(number, task, tokens[task::tasks]) for task in range(tasks)]
        # An attempt that failed after it had written everything.
        self.stage(number, 0, ["a row of nobody"])
        pending = Pending(self.run, number, staged, tokens)
        self.die_if(death == "staged")
        if death == "paused":
            self.paused.append(pending)
            raise Died
        if death == "committing":
            self.syncs = self.dice.randint(0, 6)
        self.commit(pending)
        self.syncs = None
        self.die_if(death == "shown")

    def stage(self, number: int, task: int, tokens: list[str]) -> Any:
        batch = pa.record_batch({"token": pa.array(tokens, pa.string())})
        where = Place(QUERY, str(number), task, uuid.uuid4().hex)
        return self.target().stage(where, iter([batch]))

    def commit(self, pending: Pending) -> None:
        number = pending.number
        claim = Claim(QUERY, number, pending.run.driver, str(number))
        try:
            self.target().commit(pending.staged, claim)
        except Died:
            if self.folder.epoch(number).is_dir():
                self.wrote.setdefault(number, pending.tokens)
            raise
        # Of what returns, the first is what counts: the others were dropped.
        self.wrote.setdefault(number, pending.tokens)

    def wake(self) -> None:
        """A driver that was paused goes on where it was: it is late, or it is the first."""
        if self.paused:
            pending = self.paused.pop(self.dice.randrange(len(self.paused)))
            try:
                self.commit(pending)
            except EpochFenced:
                assert pending.number in self.wrote, "nobody else had written the epoch"

    def go_back(self) -> None:
        """Take the checkpoint back some batches, and the loop with it; nobody else is at work."""
        kept = [batch + 1 for batch in self.log if batch < self.last]
        if not kept:
            return
        number = self.dice.choice(kept)
        keep = self.dice.random() < 0.5
        self.paused.clear()
        for batch in list(self.log):
            if batch > number or (batch == number and not keep):
                del self.log[batch]
                self.read.pop(batch, None)
        for epoch in self.folder.numbers():
            if epoch >= number:
                shutil.rmtree(self.folder.epoch(epoch))
        self.wrote = {epoch: rows for epoch, rows in self.wrote.items() if epoch < number}
        self.last = number - 1
        self.run = self.start()

    def finish(self) -> None:
        """Let the loop run empty, and see what became of each row."""
        self.goes_on = False
        while self.paused:
            self.wake()
        while self.attempt(None):
            assert self.last < 10 * ACTIONS, "the loop never becomes empty"
        written = {token: epoch for epoch, rows in self.wrote.items() for token in rows}
        came = [(token, batch) for batch, rows in self.read.items() for token in rows]
        assert sorted(token for token, _ in came) == sorted(written)
        assert all(written[token] < batch for token, batch in came), "a row was seen too early"


def tell(
    folder: Path,
    seed: int,
    patch: pytest.MonkeyPatch,
    breach: Callable[[pytest.MonkeyPatch], None] | None = None,
) -> Story:
    """Tell the story of a seed, to its end."""
    story = Story(folder, seed, patch)
    if breach is not None:
        breach(patch)
    for _ in range(ACTIONS):
        story.act()
    story.finish()
    return story
