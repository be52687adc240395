"""``clonos-files``: each epoch is one folder of Parquet or JSON lines that appears whole.

Tasks write complete files under ``_clonos/staging``; the commit gathers those that the messages
name into one folder, and gives it its name, ``epoch=<N>``, by one rename. What begins with an
underscore is hidden from Spark's readers.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clonos._sinks import durable
from clonos._sinks.fence import Claim, Driver, Fence, fenced, may_write
from clonos._sinks.file_formats import COMPRESSIONS, check_columns, suffix_of, write_file
from clonos._sinks.messages import Staged
from clonos._sinks.options import Guarantee, Options
from clonos._sinks.place import Place
from clonos._sinks.writers import Batches, Sink, Target
from clonos.errors import ConfigError

_OURS = "_clonos"
_MARK = "_clonos.json"
_EPOCH = "epoch="


def _file_name(query: str) -> str:
    """Return a name for what belongs to a query; that of a batch job has a path in it."""
    if query.startswith("batch:"):
        return hashlib.sha256(query.encode()).hexdigest()[:32]
    return quote(query, safe="")


class FilesTarget(Target):
    """A folder of epochs."""

    known = ("path", "fileFormat", "compression", "rowGroupBytes")

    def __init__(self, options: Options, schema: Any) -> None:
        super().__init__(options, schema)
        check_columns(schema, _EPOCH.removesuffix("="))
        self.root = Path(options.local_path()).absolute()
        self.format = options.choice("fileFormat", tuple(COMPRESSIONS))
        self.compression = options.choice("compression", COMPRESSIONS[self.format])
        self.row_group = options.size("rowGroupBytes", "64MiB")

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.root)

    def query_in_stream(self, query: str) -> str:
        """Return the query itself: a folder has one owner."""
        return query

    @property
    def ours(self) -> Path:
        """The folder of what is not data."""
        return self.root / _OURS

    def _staging(self, query: str) -> Path:
        return self.ours / "staging" / _file_name(query)

    def stage(self, where: Place, batches: Batches) -> Staged:
        """Write and sync one file where readers don't look."""
        self._own(where.query)
        folder = self._staging(where.query) / quote(where.label, safe="") / where.attempt
        name = (
            f"part-{where.partition:05d}-{where.attempt}{suffix_of(self.format, self.compression)}"
        )
        durable.make_folder(folder)
        rows = write_file(folder / name, batches, self.format, self.compression, self.row_group)
        if not rows:
            shutil.rmtree(folder, ignore_errors=True)
            return Staged(where.query, 0, None)
        durable.sync(folder)
        return Staged(where.query, rows, str((folder / name).relative_to(self.ours)))

    def write_now(self, where: Place, batches: Batches) -> Staged:
        """Write one file and show it at once."""
        staged = self.stage(where, batches)
        if staged.payload is not None:
            file = self.ours / staged.payload
            folder = self._folder(where.label)
            durable.make_folder(folder)
            file.rename(folder / file.name)
            durable.sync(folder)
            shutil.rmtree(file.parent, ignore_errors=True)
        return Staged(where.query, staged.rows, None)

    def commit(self, staged: list[Staged], claim: Claim) -> None:
        """Show the folder of an epoch by one rename; an epoch without rows has none."""
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            return
        memory = self._memory(claim.query)
        durable.make_folder(memory.parent)
        with durable.locked(self.ours / "lock"):
            state = durable.read_json(memory)
            claims: dict[str, int] = state.setdefault("claims", {})
            me = claim.driver.to_text()
            if may_write(self._fence(state, claim), claims.get(me), claim):
                claims.setdefault(me, claim.epoch)
                self._publish(staged, claim, memory, state)
            elif me not in claims:
                claims[me] = claim.epoch
                durable.replace_json(memory, state)
        self._forget(claim)

    def _publish(
        self, staged: list[Staged], claim: Claim, memory: Path, state: dict[str, Any]
    ) -> None:
        files = [self.ours / message.payload for message in staged if message.payload]
        if not files:
            return
        if self.guarantee is Guarantee.AT_MOST_ONCE:
            state["fence"] = {"epoch": claim.epoch, "driver": claim.driver.to_text()}
        if claim.fenced:
            # Before the folder is shown: a claim for an epoch not written yet does no harm.
            durable.replace_json(memory, state)
        # A name of its own: what a commit that was killed had gathered must not be published.
        folder = self._staging(claim.query) / quote(claim.label, safe="") / uuid.uuid4().hex
        folder.mkdir(parents=True)
        for file in files:
            file.rename(folder / file.name)
        mark = {"query": claim.query, "epoch": claim.label, "driver": claim.driver.to_text()}
        durable.replace_json(folder / _MARK, mark)
        try:
            folder.rename(self._folder(claim.label))
        except OSError as error:
            if error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
                # The lock does not reach over hosts on every file system; the rename does.
                raise fenced(claim, None) from error
            raise
        durable.sync(self.root)

    def _folder(self, label: str) -> Path:
        return self.root / f"{_EPOCH}{quote(label, safe='')}"

    def _memory(self, query: str) -> Path:
        return self.ours / "queries" / f"{_file_name(query)}.json"

    def _fence(self, state: dict[str, Any], claim: Claim) -> Fence | None:
        """Return the last epoch there is: a folder that exists has been written."""
        kept = state.get("fence")
        fences = [Fence(kept["epoch"], Driver.from_text(kept["driver"]))] if kept else []
        folder = self._folder(claim.label)
        if folder.is_dir():
            fences.append(Fence(claim.epoch, self._driver_of(folder)))
        numbers = (p.name[len(_EPOCH) :] for p in self.root.glob(f"{_EPOCH}*") if p.is_dir())
        later = max((int(n) for n in numbers if n.isdecimal()), default=-1)
        if later > claim.epoch and not claim.query.startswith("batch:"):
            fences.append(Fence(later, self._driver_of(self._folder(str(later)))))
        return max(fences, key=lambda fence: fence.epoch, default=None)

    @staticmethod
    def _driver_of(folder: Path) -> Driver:
        return Driver.from_text(durable.read_json(folder / _MARK).get("driver", "unknown"))

    def _own(self, query: str) -> None:
        """Claim the folder for a query; batch jobs share theirs.

        Raises
        ------
        ConfigError
            If the folder belongs to another query.
        """
        query = "batch" if query.startswith("batch:") else query
        file = self.ours / "owner.json"
        if not file.exists():
            durable.make_folder(self.ours)
            draft = file.with_name(f".owner.{uuid.uuid4().hex}")
            durable.write_new(draft, json.dumps({"query": query}).encode())
            try:
                os.link(draft, file)
            except FileExistsError:
                pass  # another task was first
            finally:
                draft.unlink()
            durable.sync(self.ours)
        owner = durable.read_json(file).get("query")
        if owner != query:
            message = (
                f"option path={str(self.root)!r}: the folder belongs to query {owner}, and this is "
                f"query {query}. Give each query a path of its own; a query that starts with a new "
                "checkpointLocation is another query"
            )
            raise ConfigError(message, "CONFIG")

    def _forget(self, claim: Claim) -> None:
        """Remove what is staged for this epoch and those before."""
        staging = self._staging(claim.query)
        if claim.query.startswith("batch:"):
            shutil.rmtree(staging, ignore_errors=True)
            return
        for folder in staging.glob("*"):
            if folder.name.isdecimal() and int(folder.name) <= claim.epoch:
                shutil.rmtree(folder, ignore_errors=True)

    def abort(self, staged: list[Staged]) -> None:
        """Remove the files that the messages name."""
        for message in staged:
            if message.payload is not None:
                shutil.rmtree((self.ours / message.payload).parent, ignore_errors=True)


class FilesSink(Sink):
    """Files that appear whole, one folder per epoch."""

    sink = "clonos-files"
    target = FilesTarget
