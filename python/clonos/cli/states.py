"""``clonos inspect`` for keyed state: savepoints, and what a checkpoint folder has of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clonos import _core
from clonos.errors import ClonosError

MANIFEST = "savepoint"
MAGIC = b"CP"
UNFINISHED = ".unfinished"
FOLDER = "state"


def stored_states(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Reports of the savepoints in and below a folder and of its keyed state, and what is damaged.

    All of it is read: what cannot be is named.
    """
    reports: list[dict[str, Any]] = []
    problems: list[str] = []
    if not path.is_dir():
        return reports, problems
    folders = [file.parent for file in sorted(path.rglob(MANIFEST)) if _is_manifest(path, file)]
    if any(path.glob(f"*/{FOLDER}/*/")):
        folders.append(path)
    for folder in folders:
        try:
            report: dict[str, Any] = json.loads(_core.stored_report(str(folder)))
        except (ClonosError, OSError) as error:
            problems.append(f"{folder}: {error}")
            continue
        problems += report["problems"]
        saved = report.get("savepoint")
        states = [_for_people(state) for state in (saved or report)["states"]]
        if saved is None:
            reports.append({"title": f"state in {folder}", "states": states})
        else:
            reports.append({"title": f"savepoint {folder}"} | saved | {"states": states})
    return reports, problems


def _is_manifest(path: Path, file: Path) -> bool:
    """Whether a file is a savepoint's: in the very folder that is asked for, also a damaged one."""
    if not file.is_file() or file.parent.name.endswith(UNFINISHED):
        return False
    if file.parent == path:
        return True
    with file.open("rb") as manifest:
        return manifest.read(len(MAGIC)) == MAGIC


def _for_people(state: dict[str, Any]) -> dict[str, Any]:
    """Write versions and variables of a state as one text each."""
    versions: list[int] = state.get("versions", [])
    texts = {}
    if versions:
        texts["versions"] = ", ".join(map(str, versions))
    return state | texts | {"variables": "; ".join(map(_variable, state.get("variables", [])))}


def _variable(variable: dict[str, Any]) -> str:
    kind, name, value = variable["kind"], variable["name"], variable["value"]
    of = f"{variable['user_key']} -> {value}" if variable["user_key"] else value
    ttl = f", TTL {variable['ttl_ms']} ms" if variable["ttl_ms"] else ""
    return f"{name}: {kind} of ({of}){ttl}"
