"""The folder of a loop: epochs of rows, each a folder of its own that appears whole.

::

    path/
    ├── loop.json        the schema of the rows, and the query that writes them
    ├── epochs/<N>/      epoch.json and files of rows: what epoch N wrote
    ├── reader.json      who reads, and where its last batches ended
    ├── claims.json      the first epoch of each driver that wrote
    ├── staging/<N>/     what tasks of an epoch have written that is not committed
    ├── removed/         what is on its way out
    └── lock             held by a commit

Nothing here knows Spark. An epoch without rows has a folder while it is the newest: it is the
fence.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from clonos._sinks import durable
from clonos.errors import ConfigError, CorruptLog, SourceInUse

FORMAT = "clonos-loop"
VERSION = 1
# Where a reader is that has read nothing.
NOTHING = -1
# Begins the names of what may become loop.json.
_DRAFT = ".loop."
_MAY_BE_NULL = ("nullable", "containsNull", "valueContainsNull")


@dataclass(frozen=True, slots=True)
class Part:
    """A file with the rows of one task: its length in bytes, and their CRC-32."""

    name: str
    rows: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch wrote.

    Parameters
    ----------
    number : int
        Number of the micro-batch that wrote it.
    query, driver, run : str
        Who wrote it; `run` is empty where Spark does not say in which execution it was.
    at : int
        When it was committed, in milliseconds since 1970.
    before : int
        The last epoch before it that had rows, or `NOTHING`: so a missing one is noticed.
    parts : tuple of Part
        Files of rows, by partition.
    """

    number: int
    query: str
    driver: str
    run: str
    at: int
    before: int
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """How many rows it wrote."""
        return sum(part.rows for part in self.parts)

    @property
    def last(self) -> int:
        """The last epoch that had rows: this one or one before it."""
        return self.number if self.parts else self.before

    def to_json(self) -> dict[str, Any]:
        """Return the form in which it is kept."""
        epoch = asdict(self)
        return {"epoch": epoch, "crc": _crc(epoch)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave.

        Raises
        ------
        ValueError
            If it is something else, or its checksum is another one.
        """
        epoch = kept.get("epoch")
        if not isinstance(epoch, dict) or kept.get("crc") != _crc(epoch):
            raise ValueError(kept)
        return cls(**{**epoch, "parts": tuple(Part(**part) for part in epoch["parts"])})


@dataclass(frozen=True, slots=True)
class Described:
    """What ``loop.json`` says: the query that writes, and Spark's JSON of the schema."""

    query: str
    schema: str


def _crc(value: Any) -> int:
    """Return the CRC-32 of a value as JSON, with its names in order and no spaces."""
    return zlib.crc32(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def columns_of(schema: str) -> Any:
    """Return names and types of a schema in Spark's JSON, without what may differ.

    Whether a column may be null, and its metadata, depend on how a plan came about.
    """
    return _plain(json.loads(schema))


def nullable(schema: str) -> Any:
    """Return a schema in Spark's JSON, in which everything may be null."""
    return _nullable(json.loads(schema))


def _plain(part: Any) -> Any:
    if isinstance(part, dict):
        apart = {*_MAY_BE_NULL, "metadata"}
        return {name: _plain(value) for name, value in part.items() if name not in apart}
    return [_plain(each) for each in part] if isinstance(part, list) else part


def _nullable(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: name in _MAY_BE_NULL or _nullable(value) for name, value in part.items()}
    return [_nullable(each) for each in part] if isinstance(part, list) else part


class LoopFolder:
    """The folder of one loop."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def lock(self) -> Path:
        """The file that a commit locks."""
        return self.root / "lock"

    def epoch(self, number: int) -> Path:
        """Return the folder of an epoch."""
        return self.root / "epochs" / str(number)

    def staging(self, epoch: str) -> Path:
        """Return the folder of what tasks of an epoch have written."""
        return self.root / "staging" / epoch

    # --- what the loop is ---------------------------------------------------------------------

    def described(self) -> Described | None:
        """Return what the loop is; ``None`` if there is no folder yet, or an empty one.

        Raises
        ------
        ConfigError
            If it is the folder of something else.
        CorruptLog
            If it is one of another version.
        """
        kept = self._json("loop.json")
        if kept is None:
            other = self.root.is_file() or any(
                not name.startswith(_DRAFT) for name in _names(self.root)
            )
            # A task may have made it in between.
            kept = self._json("loop.json") if other else None
            if other and kept is None:
                message = (
                    f"option path={str(self.root)!r}: this is not the folder of a loop. Give the "
                    "loop a folder of its own"
                )
                raise ConfigError(message, "CONFIG")
        if kept is None:
            return None
        if kept.get("format") != FORMAT or kept.get("version") != VERSION:
            found = f"{kept.get('format')!r} version {kept.get('version')!r}"
            message = f"{self.root / 'loop.json'}: {found}; this Clonos knows version {VERSION}"
            raise CorruptLog(message, "UNSUPPORTED_VERSION")
        return Described(str(kept["query"]), str(kept["schema"]))

    def claim(self, query: str, schema: str) -> None:
        """Make the loop, of this query and schema, unless it is there; then it must be the same.

        Raises
        ------
        ConfigError
            If another query writes it, or rows of another schema.
        """
        found = self.described()
        if found is None:
            durable.make_folder(self.root)
            kept = {"format": FORMAT, "version": VERSION, "query": query, "schema": schema}
            draft = self.root / f"{_DRAFT}{uuid.uuid4().hex}"
            durable.write_new(draft, json.dumps(kept).encode())
            # Another task may be first.
            with suppress(FileExistsError):
                os.link(draft, self.root / "loop.json")
            draft.unlink()
            durable.sync(self.root)
            found = self.described() or Described(query, schema)
        if found.query != query:
            message = (
                f"option path={str(self.root)!r}: query {found.query} writes this loop, and this is"
                f" query {query}. A loop has one writer: give each query a loop of its own; a query"
                " that starts with a new checkpointLocation is another query"
            )
            raise ConfigError(message, "CONFIG")
        self.check_schema(found, schema)

    def check_schema(self, found: Described, schema: str) -> None:
        """See that rows of this schema belong to the loop.

        Raises
        ------
        ConfigError
            If its rows have other columns.
        """
        kept, given = columns_of(found.schema), columns_of(schema)
        if kept != given:
            message = (
                f"the loop {str(self.root)!r} has columns {_shown(kept)}, and these are "
                f"{_shown(given)}: names, types and order must be the same. For other columns begin"
                " another loop"
            )
            raise ConfigError(message, "CONFIG")

    # --- epochs -------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Return the epochs that are there, in order."""
        return sorted(int(name) for name in _names(self.root / "epochs") if name.isdecimal())

    def read(self, number: int) -> Epoch:
        """Return what an epoch wrote.

        Raises
        ------
        FileNotFoundError
            If it is not there.
        CorruptLog
            If its record is damaged.
        """
        path = self.epoch(number) / "epoch.json"
        kept = self._json(f"epochs/{number}/epoch.json")
        if kept is None:
            raise FileNotFoundError(path)
        try:
            epoch = Epoch.from_json(kept)
        except ValueError as error:
            raise damaged(path, "it is no record of an epoch") from error
        if epoch.number != number or epoch.before >= number:
            raise damaged(path, f"it is no record of epoch {number}")
        return epoch

    def newest(self) -> Epoch | None:
        """Return the newest epoch, with rows or without."""
        while numbers := self.numbers():
            try:
                return self.read(numbers[-1])
            except FileNotFoundError:
                # One without rows goes when the next one comes.
                if self.numbers() == numbers:
                    message = f"{self.epoch(numbers[-1])}: the folder has no epoch.json"
                    raise CorruptLog(message, "CORRUPT_LOOP") from None
        return None

    def removed_up_to(self) -> int:
        """Return the last epoch with rows that is not there any more; a batch has read it."""
        numbers = self.numbers()
        return self.read(numbers[0]).before if numbers else NOTHING

    def remove(self, numbers: list[int]) -> None:
        """Delete epochs: each is gone at once."""
        removed = self.root / "removed"
        for number in numbers:
            durable.make_folder(removed)
            # Somebody else may remove it, too.
            with suppress(FileNotFoundError):
                self.epoch(number).rename(removed / f"{number}-{uuid.uuid4().hex}")
        shutil.rmtree(removed, ignore_errors=True)

    # --- who wrote and who read ---------------------------------------------------------------

    def claims(self) -> dict[str, int]:
        """Return the first epoch of each driver that wrote."""
        return self._json("claims.json") or {}

    def keep_claims(self, claims: dict[str, int]) -> None:
        """Remember the first epoch of each driver."""
        durable.replace_json(self.root / "claims.json", claims)

    def check_reader(self, reader: str) -> list[int]:
        """Return where the last batches of the loop's reader ended, the newest last.

        Raises
        ------
        SourceInUse
            If the reader is another one.
        """
        kept = self._json("reader.json") or {"reader": reader, "ends": []}
        if kept["reader"] != reader:
            message = (
                f"the loop {str(self.root)!r} is read by another query, for which what it has read "
                "is removed. Give each query a loop of its own; a query that starts with a new "
                "checkpointLocation is another query"
            )
            raise SourceInUse(message, "SOURCE_IN_USE")
        return list(kept["ends"])

    def committed(self, reader: str, end: int, retained: int) -> None:
        """Remember that a batch that ended here is committed, and remove what was read long ago.

        Parameters
        ----------
        reader : str
            Name of the reader.
        end : int
            The last epoch that it has read.
        retained : int
            For how many batches what they read stays, so that a query can go back.
        """
        ends = self.check_reader(reader)
        if ends and ends[-1] == end:
            return
        # A query that was taken back reads again what it had read.
        ends = [*(known for known in ends if known < end), end][-(retained + 1) :]
        durable.replace_json(self.root / "reader.json", {"reader": reader, "ends": ends})
        if len(ends) > retained:
            self.remove([number for number in self.numbers() if number <= ends[0]])

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.root / name
        try:
            kept = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise damaged(path, "it is no JSON") from error
        if not isinstance(kept, dict):
            raise damaged(path, "it is no JSON object")
        return kept


def _names(folder: Path) -> list[str]:
    """Names in a folder, none if there is no such folder."""
    try:
        return [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def damaged(path: Path, what: str) -> CorruptLog:
    """Return the error about a file of a loop that is not what was written."""
    message = (
        f"{path}: the file is damaged: {what}. Its rows were recorded nowhere else: bring it back "
        "from a backup"
    )
    return CorruptLog(message, "CORRUPT_LOOP")


def epochs_between(
    folder: LoopFolder, start: int, end: int, known: dict[int, Epoch]
) -> list[Epoch]:
    """Return the epochs with rows after `start` up to `end`, in order.

    Parameters
    ----------
    folder : LoopFolder
        The loop.
    start, end : int
        Epochs; `end` has rows, or is not after `start`.
    known : dict
        What was read before; what is read now is added.

    Raises
    ------
    CorruptLog
        If one of them is missing.
    """
    found: list[Epoch] = []
    number = end
    while number > start:
        if number not in known:
            try:
                known[number] = folder.read(number)
            except FileNotFoundError as error:
                message = (
                    f"the query is to read epoch {number} of the loop {str(folder.root)!r}, which "
                    "is not there: they do not belong together. Give the query its old loop back, "
                    "or a new checkpointLocation and a new loop"
                )
                raise CorruptLog(message, "SOURCE_TRUNCATED") from error
        found.append(known[number])
        number = known[number].before
    return found[::-1]


def _shown(columns: Any) -> str:
    """Names and types, as people write them."""
    return ", ".join(f"{f['name']} {_type(f['type'])}" for f in columns["fields"])


def _type(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind, ensure_ascii=False)


def files_of(epochs: list[Epoch]) -> Iterator[tuple[Epoch, Part]]:
    """Yield each file of rows with its epoch, in order."""
    for epoch in epochs:
        for part in epoch.parts:
            yield epoch, part


__all__ = [
    "NOTHING",
    "Described",
    "Epoch",
    "LoopFolder",
    "Part",
    "columns_of",
    "damaged",
    "epochs_between",
    "files_of",
    "nullable",
]
