"""``clonos inspect``: what agents, segment files, savepoints and files of state hold."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from clonos import _core
from clonos._temporary import private_folder
from clonos.cli.location import location_of
from clonos.cli.states import stored_states
from clonos.errors import ClonosError


def run(path: str | None, options: Sequence[str], as_json: bool) -> int:
    """Print a report; 0 if everything could be read.

    Raises
    ------
    ConfigError
        As `look`.
    """
    reports, problems = _sessions() if path is None else look(path, options)
    console = Console()
    if as_json:
        console.print_json(json.dumps({"reports": reports, "problems": problems}))
    else:
        for report in reports:
            _show(console, report)
        if not reports and not problems:
            console.print(
                "No running session of yours on this machine."
                if path is None
                else f"No segment files and no state in {path}."
            )
        for problem in problems:
            console.print(f"[red]{problem}[/red]")
    return 1 if problems else 0


def sessions() -> list[_core.SessionConfig]:
    """Return the sessions of this user on this machine; one that was killed may be among them."""
    found = []
    for file in sorted(private_folder().glob("*/session")):
        # What another version of Clonos has left there, none of ours can speak to.
        with contextlib.suppress(ClonosError, OSError):
            found.append(_core.SessionConfig.from_bytes(file.read_bytes()))
    return found


def _sessions() -> tuple[list[dict[str, Any]], list[str]]:
    """Reports of the sessions of this user that answer."""
    reports, problems = [], []
    for config in sessions():
        try:
            report = json.loads(_core.cluster_stats(config))
        except ClonosError as error:
            problems.append(f"session of {config.app_id}: {error}")
            continue
        reports.append({"title": f"session of {config.app_id}"} | report)
    return reports, problems


def look(path: str, options: Sequence[str] = ()) -> tuple[list[dict[str, Any]], list[str]]:
    """Reports of what there is at a path or URL and below it, and what is damaged.

    All of it is read: what cannot be is named.

    Raises
    ------
    ConfigError
        For a URL that names nothing, and for `options` that a store does not know.
    """
    root, location = location_of(path, options)
    found: dict[str, Any] = json.loads(_core.inspect(location))
    reports = stored_states(root, found)
    reports += [_receiver(folder) for folder in _receivers(root)]
    reports += [{"title": segment["file"]} | segment for segment in found["segments"]]
    return reports, found["problems"]


def _receivers(root: str) -> list[Path]:
    """Folders of receivers of logs there and below; of an object store those of this machine."""
    from clonos._sources.options import stored_folders
    from clonos._sources.receiver import log_of

    if "://" not in root:
        return sorted(file.parent for file in Path(root).rglob("receiver.json"))
    return [
        folder for folder in sorted(stored_folders().iterdir()) if log_of(folder).startswith(root)
    ]


def _receiver(folder: Path) -> dict[str, Any]:
    """Report of the receiver of a source's log: what it has received since it was started."""
    from clonos._sources import receiver

    found = receiver.find(folder, encrypt=receiver.encrypts(folder))
    title = f"receiver of {folder}"
    if found is None:
        return {"title": title, "state": "does not run"}
    client, addr = found
    stats: dict[str, Any] = json.loads(client.stats())
    return {"title": title, "state": f"runs at {addr}"} | stats


def _show(console: Console, report: dict[str, Any]) -> None:
    tasks: list[dict[str, Any]] = report.get("tasks", report.get("states", []))
    columns = list(dict.fromkeys(key for task in tasks for key in task))
    if columns:
        # Folded where the screen is narrow, not cut off: the end of its name tells a task.
        heads = [Column(column, overflow="fold") for column in columns]
        table = Table(*heads, title=str(report["title"]), title_justify="left")
        for task in tasks:
            table.add_row(*(_cell(task.get(column, "")) for column in columns))
        console.print(table)
    else:
        console.print(str(report["title"]))
    rest = {k: v for k, v in report.items() if k not in ("tasks", "states", "title")}
    if rest:
        console.print(rest)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
