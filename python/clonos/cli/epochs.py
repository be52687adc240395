"""``clonos epochs``: what is in a ``checkpoint_dir``, and dropping what nobody needs any more."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from clonos import _core
from clonos._worker.place import BATCH_QUERY
from clonos.cli.inspection import sessions
from clonos.errors import ClonosError, ConfigError

# Files written so lately count as in use, whoever writes them and wherever.
QUIET_SECONDS = 600
# Schemes that name the same as another.
_SCHEMES = {"s3a": "s3", "abfs": "abfss"}
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
        How many there are, objects in an object store, and how large they are together.
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


@dataclass(frozen=True)
class Asked:
    """What is to be done: list, or drop those that are named in `drop` or old.

    Attributes
    ----------
    drop : list of str
        Names of epochs.
    older_than : str or None
        An age, as `parse_age` reads it.
    force : bool
        Whether to drop what is in use.
    as_json : bool
        Whether to print a list as JSON.
    """

    drop: list[str]
    older_than: str | None
    force: bool
    as_json: bool


def find(root: str, stored: _core.Epochs) -> list[EpochFiles]:
    """Epochs in a ``checkpoint_dir``, oldest first.

    Raises
    ------
    ClonosError
        If an object store does not answer.
    """
    live = set(_live(root))
    now = time.time()
    epochs = []
    for found in json.loads(stored.list()):
        key, age = found.pop("name"), max(0.0, now - found.pop("written_ms") / 1000)
        name = key.removeprefix(f"{BATCH_QUERY}/")
        in_use = key in live or age < QUIET_SECONDS
        epochs.append(EpochFiles(name=name, age_seconds=age, in_use=in_use, **found))
    return epochs


def run(root: str, location: _core.Location, asked: Asked) -> int:
    """List epochs, or drop those that are named or old; 1 if one that was asked for was not.

    Parameters
    ----------
    root : str
        The ``checkpoint_dir``: an absolute path, or a URL.
    location : Location
        The same, as the core opens it.
    asked : Asked
        What is to be done.

    Raises
    ------
    ConfigError
        If `root` is no folder, or names no store, or `older_than` is no age.
    ClonosError
        If an object store does not answer.
    """
    console = Console()
    age = None if asked.older_than is None else parse_age(asked.older_than)
    stored = _core.Epochs.open(location)
    epochs = find(root, stored)
    if not asked.drop and age is None:
        if asked.as_json:
            console.print_json(json.dumps([asdict(epoch) for epoch in epochs]))
        else:
            _show(console, root, epochs)
        return 0
    chosen = [
        epoch
        for epoch in epochs
        if epoch.name in asked.drop or (age is not None and epoch.age_seconds >= age)
    ]
    unknown = [name for name in asked.drop if all(epoch.name != name for epoch in epochs)]
    for name in unknown:
        console.print(f"[red]no epoch {name!r} in {root}[/red]; `clonos epochs {root}` lists them")
    kept = [epoch for epoch in chosen if epoch.in_use and not asked.force]
    for epoch in chosen:
        if epoch in kept:
            console.print(f"[red]{epoch.name} is in use[/red] and stays; --force drops it anyway")
        else:
            stored.drop_epoch(epoch.folder)
            console.print(f"dropped {epoch.name}: {decimal(epoch.bytes)}")
    return 1 if unknown or kept else 0


def _live(root: str) -> Iterator[str]:
    """``query/epoch`` of all that the running sessions of this machine have open in `root`."""
    for config in sessions():
        if config.checkpoint_dir is None or _plain(config.checkpoint_dir) != _plain(root):
            continue
        try:
            report: dict[str, Any] = json.loads(_core.cluster_stats(config))
        except ClonosError:
            continue
        for task in report["tasks"]:
            # operator@query/epoch/partition
            yield task["task"].removeprefix(f"{task['operator']}@").rpartition("/")[0]


def _plain(root: str) -> str:
    """One name for what may be written in several ways."""
    scheme, is_url, rest = root.rstrip("/").partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}{is_url}{rest}"


def _show(console: Console, root: str, epochs: list[EpochFiles]) -> None:
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
