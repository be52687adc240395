"""What a function imports inside itself: the files of the user's own modules, by their bytes.

A module that is imported inside a function may not be loaded yet when the function is looked at in
a first run, and be loaded in a restart, or the other way round. So it never counts by what stands
in it once it is loaded, but always by the bytes of its file and of the files that this one imports
in turn. They are found as the interpreter would find them, and nothing is imported for that.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NamedTuple

from clonos._held import is_of_python_or_spark, is_users_file

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]


class Found(NamedTuple):
    """What a function imports: its name, and of a user's file a digest."""

    name: str
    digest: bytes | None
    # Whether the function itself names it, so that it should have been found.
    direct: bool
    # Whether its text mentions idempotency keys.
    asks: bool = False
    # Whether the interpreter would not find it either, as where `try` tries which one is there.
    absent: bool = False


class _Import(NamedTuple):
    module: str
    # What is taken from it: other modules, or what stands in this one.
    names: tuple[str, ...]


class _Place(NamedTuple):
    """Where a module is: its file, and the folders of the modules below it."""

    loader: Any
    file: str | None
    folders: tuple[str, ...] | None


def imported_files(code: types.CodeType, scope: Mapping[str, Any]) -> list[Found]:
    """Return the user's modules that code imports, with all that they import, by name.

    Those of Python and of installed packages are left out. One that is absent counts as that, and
    of one that is found by other means than its name there is no digest.
    """
    package = scope.get("__package__")
    if package is None:
        name = str(scope.get("__name__", ""))
        package = name if "__path__" in scope else name.rpartition(".")[0]
    found: dict[str, Found] = {}
    pending = [(one, True) for one in _imports_in(code, package)]
    while pending:
        one, direct = pending.pop()
        for name in (one.module, *(f"{one.module}.{name}" for name in one.names)):
            # What is taken from a module may be no module.
            optional = name != one.module
            pending += [(below, False) for below in _take(name, found, direct, optional)]
    return [found[name] for name in sorted(found)]


def _take(name: str, found: dict[str, Found], direct: bool, optional: bool) -> list[_Import]:
    """Add a module and those above it, and return what their files import."""
    if is_of_python_or_spark(name):
        return []
    if name == "__main__" or name.startswith("."):
        # Nothing that a file is found for by its name.
        found.setdefault(name, Found(name, None, direct))
        return []
    imports: list[_Import] = []
    folders: tuple[str, ...] | None = None
    above = ""
    for part in name.split("."):
        full = f"{above}.{part}" if above else part
        place = None if above and folders is None else _place(full, folders)
        if place is None:
            if not optional:
                found.setdefault(name, Found(name, None, direct, absent=True))
            return imports
        if place.file is not None and not is_users_file(place.file):
            return imports
        above, folders = full, place.folders
        if place.file is not None and full not in found:
            try:
                digest, content = _read(place)
            except OSError:
                digest, content = None, b""
            found[full] = Found(full, digest, direct, b"idempotency_key" in content)
            imports += _imports_of_file(content, full if folders is not None else _above(full))
    return imports


def _above(name: str) -> str:
    return name.rpartition(".")[0]


def _place(name: str, folders: tuple[str, ...] | None) -> _Place | None:
    """Find a module without importing it or what is above it."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, folders, None)
        except KeyError:
            # A folder without a file, below one that is not loaded.
            return _folder(name, folders)
        except Exception:  # noqa: BLE001, S112 - whatever a finder of some tool's raises
            continue
        if spec is not None:
            return _place_of(spec)
    return None


def _place_of(spec: ModuleSpec) -> _Place:
    below = spec.submodule_search_locations
    file = spec.origin if spec.has_location else None
    return _Place(spec.loader, file, None if below is None else tuple(below))


def _folder(name: str, folders: tuple[str, ...] | None) -> _Place | None:
    below = [Path(folder, name.rpartition(".")[2]) for folder in folders or ()]
    there = tuple(str(path) for path in below if path.is_dir())
    return _Place(None, None, there) if there else None


def _read(place: _Place) -> tuple[bytes, bytes]:
    try:
        # It may be in an archive.
        content = bytes(place.loader.get_data(place.file))
    except AttributeError:
        content = Path(str(place.file)).read_bytes()
    return hashlib.blake2b(content, digest_size=16).digest(), content


@functools.lru_cache(maxsize=1_000)
def _imports_of_file(content: bytes, package: str) -> tuple[_Import, ...]:
    try:
        code = compile(content, "<imported>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        # No Python, as in a module that is compiled.
        return ()
    return tuple(_imports_in(code, package))


def _imports_in(code: types.CodeType, package: str) -> Iterator[_Import]:
    """Yield what code and the functions in it import."""
    before: list[Any] = [None, None]
    # Most code imports nothing, and is not worth the time to take it apart.
    there = _IMPORT_NAME in code.co_code[::2]
    for instruction in dis.get_instructions(code) if there else ():
        if instruction.opname == "IMPORT_NAME":
            level, names = before
            yield _resolved(str(instruction.argval), level or 0, names or (), package)
        if instruction.opname not in {"EXTENDED_ARG", "CACHE", "NOP"}:
            before = [before[1], instruction.argval]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imports_in(constant, package)


def _resolved(name: str, level: int, names: tuple[str, ...], package: str) -> _Import:
    taken = tuple(other for other in names if other != "*")
    if not level:
        return _Import(name, taken)
    relative = "." * level + name
    try:
        full = importlib.util.resolve_name(relative, package)
    except ImportError:
        # There is no such package, and so nothing is found.
        full = relative
    return _Import(full, taken)
