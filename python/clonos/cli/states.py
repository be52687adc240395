"""``clonos inspect`` for keyed state: savepoints, and what a checkpoint folder has of it."""

from __future__ import annotations

from typing import Any


def stored_states(place: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Reports of the savepoints and of the keyed state that were found in `place`, to be shown."""
    reports: list[dict[str, Any]] = []
    for saved in found["savepoints"]:
        states = [_for_people(state) for state in saved["states"]]
        reports.append({"title": f"savepoint {saved.pop('folder')}"} | saved | {"states": states})
    if found["states"]:
        states = [_for_people(state) for state in found["states"]]
        reports.append({"title": f"state in {place}", "states": states})
    return reports


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
