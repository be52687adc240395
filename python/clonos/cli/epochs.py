"""``clonos epochs``: what is in a ``checkpoint_dir``, and dropping what nobody needs any more."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from clonos import _core
from clonos._worker.place import BATCH_QUERY
from clonos.cli.inspection import SEGMENT_SUFFIX, sessions
from clonos.errors import ClonosError, ConfigError

# Files written so lately count as in use, whoever writes them and wherever.
QUIET_SECONDS = 600
# Says whose an epoch, or a query, is.
CLAIM_SUFFIX = ".claim"
_QUERY_FOLDER = re.compile(r"[0-9a-f]{16}")
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_AGE_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


@dataclass(frozen=True)
class EpochFiles:
    """An epoch that was not committed, as its files tell.

    Attributes
    ----------
    name : str
        As it is given to ``--drop``: the name of a ``session.epoch``, else ``query/number``.
    folder : str
        Where its files are.
    files, bytes : int
        How many there are, and how large they are together.
    age_seconds : float
        Since something was last written.
    applications : list of str
        Hashes of the applications that wrote.
    in_use : bool
        Whether a running session has it open, or something was written in the last ten minutes.
    """

    name: str
    folder: str
    files: int
    bytes: int
    age_seconds: float
    applications: list[str]
    in_use: bool


def parse_age(text: str) -> float:
    """Seconds meant by ``"7d"``, ``"12h"``, ``"30m"``, ``"90s"`` or ``"2w"``.

    Raises
    ------
    ConfigError
        If it is no such text.
    """
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"--older-than {text!r} is no age: write 7d, 12h or 30m", "CONFIG")
    return float(found[1]) * _AGE_UNITS[found[2]]


def find(root: Path) -> list[EpochFiles]:
    """Epochs in a ``checkpoint_dir``, oldest first.

    Raises
    ------
    ConfigError
        If there is no such folder.
    """
    if not root.is_dir():
        raise ConfigError(f"{root} is no folder: give the checkpoint_dir of a session", "CONFIG")
    live = set(_live(root))
    folders = (
        folder
        for query in root.iterdir()
        if query.is_dir() and _QUERY_FOLDER.fullmatch(query.name)
        for folder in query.iterdir()
    )
    found = (_epoch(folder, live) for folder in folders if folder.is_dir())
    return sorted((epoch for epoch in found if epoch), key=lambda epoch: -epoch.age_seconds)


def run(root: Path, drop: list[str], older_than: str | None, force: bool, as_json: bool) -> int:
    """List epochs, or drop those that are named or old; 1 if one that was asked for was not.

    Raises
    ------
    ConfigError
        If `root` is no folder, or `older_than` is no age.
    """
    console = Console()
    epochs = find(root)
    if not drop and older_than is None:
        if as_json:
            console.print_json(json.dumps([asdict(epoch) for epoch in epochs]))
        else:
            _show(console, root, epochs)
        return 0
    age = None if older_than is None else parse_age(older_than)
    chosen = [
        epoch
        for epoch in epochs
        if epoch.name in drop or (age is not None and epoch.age_seconds >= age)
    ]
    unknown = [name for name in drop if all(epoch.name != name for epoch in epochs)]
    for name in unknown:
        console.print(f"[red]no epoch {name!r} in {root}[/red]; `clonos epochs {root}` lists them")
    kept = [epoch for epoch in chosen if epoch.in_use and not force]
    for epoch in chosen:
        if epoch in kept:
            console.print(f"[red]{epoch.name} is in use[/red] and stays; --force drops it anyway")
        else:
            _remove(epoch)
            console.print(f"dropped {epoch.name}: {decimal(epoch.bytes)}")
    return 1 if unknown or kept else 0


def _epoch(folder: Path, live: set[str]) -> EpochFiles | None:
    """Describe the epoch of a folder; ``None`` if it is empty, or was dropped meanwhile."""
    files = []
    for file in folder.glob(f"*{SEGMENT_SUFFIX}"):
        # An agent removes what is committed at any time.
        try:
            files.append((file, file.stat()))
        except FileNotFoundError:
            continue
    if not files:
        return None
    age = max(0.0, time.time() - max(stat.st_mtime for _, stat in files))
    # The shortest file is enough to know whose they all are.
    shortest, _ = min(files, key=lambda file: file[1].st_size)
    key = _key(shortest) or f"{folder.parent.name}/{folder.name}"
    return EpochFiles(
        name=key.removeprefix(f"{BATCH_QUERY}/"),
        folder=str(folder),
        files=len(files),
        bytes=sum(stat.st_size for _, stat in files),
        age_seconds=age,
        applications=sorted({file.stem.rpartition("-")[2] for file, _ in files}),
        in_use=key in live or age < QUIET_SECONDS,
    )


def _key(file: Path) -> str | None:
    """``query/epoch`` of a segment, if it can be read."""
    try:
        report = json.loads(_core.read_segment(str(file)))
    except (ClonosError, OSError):
        return None
    if report["query"] is None:
        return None
    (epoch,) = report["epoch"].values()
    return f"{report['query']}/{epoch}"


def _live(root: Path) -> Iterator[str]:
    """``query/epoch`` of all that the running sessions of this machine have open in `root`."""
    for config in sessions():
        if config.checkpoint_dir is None or Path(config.checkpoint_dir) != root.absolute():
            continue
        try:
            report: dict[str, Any] = json.loads(_core.cluster_stats(config))
        except ClonosError:
            continue
        for task in report["tasks"]:
            # operator@query/epoch/partition
            yield task["task"].removeprefix(f"{task['operator']}@").rpartition("/")[0]


def _remove(epoch: EpochFiles) -> None:
    folder = Path(epoch.folder)
    # The claim first: what is left without one counts for nothing.
    for pattern in (f"*{CLAIM_SUFFIX}", f"*{SEGMENT_SUFFIX}"):
        for file in folder.glob(pattern):
            file.unlink(missing_ok=True)
    for empty in (folder, folder.parent):
        try:
            # The claim on a query goes with the last of its epochs.
            inside = list(empty.iterdir())
            if all(path.suffix == CLAIM_SUFFIX for path in inside):
                for claim in inside:
                    claim.unlink(missing_ok=True)
            empty.rmdir()
        except OSError:
            # Another epoch of the query, or something that is not ours, is in it.
            return


def _show(console: Console, root: Path, epochs: list[EpochFiles]) -> None:
    if not epochs:
        console.print(f"No epoch is open in {root}.")
        return
    table = Table("epoch", "size", "files", "last written", "application", "")
    for epoch in epochs:
        table.add_row(
            epoch.name,
            decimal(epoch.bytes),
            str(epoch.files),
            f"{_age(epoch.age_seconds)} ago",
            ", ".join(epoch.applications),
            "in use" if epoch.in_use else "",
        )
    console.print(table)


def _age(seconds: float) -> str:
    for unit, length in reversed(_AGE_UNITS.items()):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
