"""The loop's end that is written to: tasks stage files, the commit of an epoch shows them."""

from __future__ import annotations

import errno
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from clonos._loops.folder import NOTHING, Epoch, LoopFolder, Part
from clonos._loops.rows import write_rows
from clonos._sinks import durable, place
from clonos._sinks.fence import Claim, Driver, Fence, fenced, may_write
from clonos._sinks.messages import Staged
from clonos._sinks.options import Guarantee, Options, refuse
from clonos._sinks.place import Place
from clonos._sinks.writers import Batches, BatchWriter, Target, staged_of
from clonos.errors import ConfigError, EpochFenced


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What a task has written: in which run of which epoch, and its file, if it had rows."""

    run: str
    epoch: int
    attempt: str
    part: Part | None


class LoopTarget(Target):
    """The loop as a sink."""

    known = ("path",)

    def __init__(self, options: Options, schema: Any) -> None:
        super().__init__(options, schema)
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            raise refuse("guarantee", self.guarantee.value, "a loop is always 'exactly_once'")
        self.folder = LoopFolder(Path(options.local_path()).absolute())
        found = self.folder.described()
        if found is not None:
            self.folder.check_schema(found, schema.json())

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder.root)

    def query_in_stream(self, query: str) -> str:
        """Return the query itself: a loop has one writer."""
        return query

    def stage(self, where: Place, batches: Batches) -> Staged:
        """Write and sync one file where readers don't look."""
        self.folder.claim(where.query, self.schema.json())
        folder = self.folder.staging(where.label) / where.attempt
        # The file is synced here, its name where the commit puts it.
        folder.mkdir(parents=True, exist_ok=True)
        part = write_rows(folder / f"part-{where.partition:05d}-{where.attempt}.arrow", batches)
        if part is None:
            shutil.rmtree(folder, ignore_errors=True)
        staged = StagedPart(place.run(), int(where.label), where.attempt, part)
        return Staged(where.query, part.rows if part else 0, staged)

    def commit(self, staged: list[Staged], claim: Claim) -> None:
        """Show the files of an epoch by one rename, unless it has been written.

        Raises
        ------
        EpochFenced
            If another live driver writes the same query, or the query has gone back.
        ConfigError
            If the epoch was written before in the same run, or the folder is not the tasks' one.
        """
        if self.folder.described() is None:
            message = (
                f"option path={self.name!r}: tasks wrote to a folder of this name that the driver "
                "does not see. It must be on a file system that driver and executors have mounted"
            )
            raise ConfigError(message, "CONFIG")
        with durable.locked(self.folder.lock):
            newest = self.folder.newest()
            self._check(newest, claim, staged[0].payload.run)
            claims = self.folder.claims()
            me = claim.driver.to_text()
            fence = Fence(newest.number, Driver.from_text(newest.driver)) if newest else None
            write = may_write(fence, claims.get(me), claim)
            if me not in claims:
                # First: a claim for an epoch that is not written yet does no harm.
                self.folder.keep_claims({**claims, me: claim.epoch})
            if write:
                self._publish(staged, claim, newest)
        self._forget(claim.epoch)

    def _check(self, newest: Epoch | None, claim: Claim, run: str) -> None:
        if newest is None:
            return
        if newest.number > claim.epoch:
            raise later_epochs(self.folder, claim.query, claim.epoch, newest)
        ours = (run, claim.driver.to_text())
        if newest.number == claim.epoch and run and (newest.run, newest.driver) == ours:
            message = (
                f"epoch {claim.label} was written to the loop {self.name!r} before, in the same "
                "batch. An epoch writes to a loop once: union what goes there"
            )
            raise ConfigError(message, "CONFIG")

    def _publish(self, staged: list[Staged], claim: Claim, newest: Epoch | None) -> None:
        # A name of its own: what a commit that was killed had gathered must not be shown.
        gathered = self.folder.staging(claim.label) / uuid.uuid4().hex
        gathered.mkdir(parents=True)
        parts = []
        for message in staged:
            what: StagedPart = message.payload
            if what.part is not None:
                attempt = self.folder.staging(claim.label) / what.attempt
                (attempt / what.part.name).rename(gathered / what.part.name)
                parts.append(what.part)
        epoch = Epoch(
            number=claim.epoch,
            query=claim.query,
            driver=claim.driver.to_text(),
            run=staged[0].payload.run,
            at=time.time_ns() // 1_000_000,
            before=newest.last if newest else NOTHING,
            parts=tuple(sorted(parts, key=lambda part: part.name)),
        )
        durable.replace_json(gathered / "epoch.json", epoch.to_json())
        shown = self.folder.epoch(claim.epoch)
        durable.make_folder(shown.parent)
        try:
            gathered.rename(shown)
        except OSError as error:
            if error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
                # The lock does not reach over hosts on every file system; the rename does.
                raise fenced(claim, None) from error
            raise
        durable.sync(shown.parent)
        if newest is not None and not newest.parts:
            # It was the fence.
            self.folder.remove([newest.number])

    def _forget(self, epoch: int) -> None:
        """Remove what is staged for this epoch and those before."""
        for folder in (self.folder.root / "staging").glob("*"):
            if folder.name.isdecimal() and int(folder.name) <= epoch:
                shutil.rmtree(folder, ignore_errors=True)

    def abort(self, staged: list[Staged]) -> None:
        """Remove the files that the messages name."""
        for message in staged:
            what: StagedPart = message.payload
            attempt = self.folder.staging(str(what.epoch)) / what.attempt
            shutil.rmtree(attempt, ignore_errors=True)


class LoopBatchWriter(BatchWriter):
    """Writes what ``foreachBatch`` gives, as the epoch of the query whose batch it is."""

    def write(self, iterator: Batches) -> Staged:
        """Stage the rows of one task.

        Raises
        ------
        ConfigError
            If the task is of no streaming query, or of another epoch than the option says.
        """
        found = place.streaming_task()
        if found is None:
            message = (
                "clonos-loop takes rows of streaming queries only: write to it with writeStream, or"
                " in foreachBatch"
            )
            raise ConfigError(message, "CONFIG")
        query, epoch = found
        if self.named and self.label != str(epoch):
            what = f"it must be the number of the batch, {epoch}, or not be given"
            raise refuse("epoch", self.label, what)
        where = Place(query, str(epoch), place.partition(), uuid.uuid4().hex)
        return self.target.write(where, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Show the epoch."""
        staged = staged_of(messages)
        if staged:
            epoch = staged[0].payload.epoch
            claim = Claim(staged[0].query, epoch, place.this_driver(), str(epoch))
            self.target.commit(staged, claim)


def later_epochs(folder: LoopFolder, query: str, epoch: int, newest: Epoch) -> EpochFenced:
    """Return the error of an epoch that finds later ones of its own query in the loop."""
    message = (
        f"query {query}, epoch {epoch}: the loop {str(folder.root)!r} has epoch {newest.number}, "
        f"written by the driver on {Driver.from_text(newest.driver)}. If two drivers run on one "
        "checkpointLocation, stop one of them. If the checkpoint was taken back to an earlier "
        f"batch, take the loop back, too: remove the folders {epoch} and later from "
        f"{str(folder.epoch(epoch).parent)!r}"
    )
    return EpochFenced(message, "EPOCH_FENCED")


__all__ = ["LoopBatchWriter", "LoopTarget", "StagedPart", "later_epochs"]
