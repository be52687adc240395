"""Files that survive a power cut: written, synced, and only then given their names."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def sync(path: Path) -> None:
    """Write a file, or the entries of a folder, through to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and those above it; each new entry is synced."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def write_new(path: Path, content: bytes) -> None:
    """Write and sync a file of that name; its folder is not synced."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_json(path: Path, value: Any) -> None:
    """Put `value` in the place of what the file held; nobody sees half of it."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_new(draft, json.dumps(value).encode())
    draft.replace(path)
    sync(path.parent)


def read_json(path: Path) -> dict[str, Any]:
    """Return what the file holds, nothing if there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return value if isinstance(value, dict) else {}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock; it goes with the process that dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
