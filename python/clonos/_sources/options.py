"""Options that every replayable source has, read from the strings Spark hands over."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clonos._config import (
    PORT_MAX,
    one_of,
    parse_location,
    parse_ports,
    parse_size,
    without_secrets,
)
from clonos._temporary import private_folder
from clonos.errors import ConfigError

# What every source understands.
COMMON = (
    "name",
    "logDir",
    "memory",
    "disk",
    "spillPolicy",
    "maxRecordsPerBatch",
    "numPartitions",
    "includeTimestamp",
    "lingerSeconds",
    "bindHost",
    "reachedAs",
    "ports",
    "encrypt",
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_MILLISECONDS = {
    unit: millis
    for millis, units in (
        (1, "ms millisecond milliseconds"),
        (1_000, "s second seconds"),
        (60_000, "m min minute minutes"),
        (3_600_000, "h hour hours"),
        (86_400_000, "d day days"),
    )
    for unit in units.split()
}
_NAME = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True)
class SourceOptions:
    """What a user may say about a source's log.

    Attributes
    ----------
    folder : str
        Folder on this machine for what goes with the log.
    log : str
        Where the log lies: option ``logDir``, a folder or the URL of an object store, and in it
        option ``name``.
    memory, disk : int
        Bytes kept in memory, and bytes that may wait to be committed.
    eager : bool
        Whether rows are on disk, synced, before they are acknowledged (``spillPolicy``).
    max_rows : int or None
        ``maxRecordsPerBatch``.
    partitions : int
        Into how many tasks a batch is split at most: ``numPartitions``, or 0 if it was not given.
    timestamps : bool
        ``includeTimestamp``: a column with the time of receipt.
    linger : float
        Seconds for which the receiver waits for a new driver after the one it had is gone.
    bind_host : str
        Interface on which it serves executors.
    reached_as : str
        Host under which they reach that, or empty if it is the same.
    ports : tuple of int
        First and last of the ports of which it may have any; 0 and 0 are all.
    encrypt : bool
        Whether what it sends them is encrypted.
    """

    folder: str
    log: str
    memory: int
    disk: int
    eager: bool
    max_rows: int | None
    partitions: int
    timestamps: bool
    linger: float
    bind_host: str
    reached_as: str
    ports: tuple[int, int]
    encrypt: bool


def source_options(options: Mapping[str, str], default_name: str) -> SourceOptions:
    """Read the options of a source.

    Parameters
    ----------
    options : mapping
        As in ``DataSource.options``: names in any case, values as strings.
    default_name : str
        Name of the log unless option ``name`` gives one.

    Raises
    ------
    ConfigError
        Names the option and says what it may be.
    """
    name = options.get("name") or _as_name(default_name)
    if not _NAME.fullmatch(name):
        raise refused("name", name, "1 to 100 letters, digits, '.', '_' or '-'")
    folder, log = _places(options.get("logDir") or str(private_folder()), name)
    policy = one_of("spillPolicy", options.get("spillPolicy", "eager"), ("eager", "availability"))
    most = options.get("maxRecordsPerBatch")
    return SourceOptions(
        folder=folder,
        log=log,
        memory=parse_size("memory", options.get("memory", "64MiB")),
        disk=parse_size("disk", options.get("disk", "16GiB")),
        eager=policy == "eager",
        max_rows=None if most is None else whole(options, "maxRecordsPerBatch", 1),
        partitions=whole(options, "numPartitions", 1) if "numPartitions" in options else 0,
        timestamps=truth(options, "includeTimestamp", default=False),
        linger=seconds(options, "lingerSeconds", 60.0),
        bind_host=options.get("bindHost", "127.0.0.1"),
        reached_as=options.get("reachedAs", ""),
        ports=parse_ports(options.get("ports"), "ports"),
        encrypt=truth(options, "encrypt", default=False),
    )


def check_known(
    source: str,
    options: Mapping[str, str],
    own: tuple[str, ...],
    common: tuple[str, ...] = COMMON,
) -> None:
    """Refuse options that a source does not have: a misspelt one would be ignored.

    Raises
    ------
    ConfigError
        Names the option, and the one that was probably meant.
    """
    known = {name.lower(): name for name in (*common, *own)}
    names = ", ".join(sorted(known.values()))
    for option in options:
        if option.lower() not in known:
            close = difflib.get_close_matches(option.lower(), known, 1)
            advice = f"did you mean {known[close[0]]!r}?" if close else f"it has {names}"
            raise ConfigError(f"{source} has no option {option!r}: {advice}", "CONFIG")


def refused(option: str, value: str | None, allowed: str) -> ConfigError:
    """Return the error that says what an option may be."""
    shown = None if value is None else without_secrets(value)
    return ConfigError(f"option {option}={shown!r}: it must be {allowed}", "CONFIG")


def whole(options: Mapping[str, str], option: str, default: int) -> int:
    """Return a whole number from 1 on.

    Raises
    ------
    ConfigError
        If it is none.
    """
    text = options.get(option, str(default))
    if not text.strip().isdecimal() or int(text) < 1:
        raise refused(option, text, "a whole number from 1 on")
    return int(text)


def truth(options: Mapping[str, str], option: str, *, default: bool) -> bool:
    """Return ``true`` or ``false``.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    text = str(options.get(option, default)).lower()
    if text not in {"true", "false"}:
        raise refused(option, text, "'true' or 'false'")
    return text == "true"


def seconds(options: Mapping[str, str], option: str, default: float) -> float:
    """Return a number of seconds from 0 on.

    Raises
    ------
    ConfigError
        If it is none.
    """
    text = options.get(option, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise refused(option, text, "a number of seconds from 0 on")
    return value


def duration(options: Mapping[str, str], option: str, default: str) -> int:
    """Return milliseconds of a number with a unit, such as ``10 seconds``, ``500ms``, ``1.5 h``.

    Raises
    ------
    ConfigError
        If it is no such time.
    """
    text = options.get(option, default)
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _MILLISECONDS:
        raise refused(option, text, "a number with a unit, such as '10 seconds', '5 min' or '2h'")
    return round(float(found[1]) * _MILLISECONDS[found[2]])


def port_of(options: Mapping[str, str], source: str) -> int:
    """Return option ``port``.

    Raises
    ------
    ConfigError
        If it is missing or no port.
    """
    if "port" not in options:
        raise ConfigError(f"{source} needs the option port", "CONFIG")
    port = whole(options, "port", 0)
    if port > PORT_MAX:
        raise refused("port", str(port), f"at most {PORT_MAX}")
    return port


def address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _places(log_dir: str, name: str) -> tuple[str, str]:
    """Return the folder on this machine for what goes with a log, and where the log lies.

    Nothing depends on the folder of a log in an object store: it is found again by the URL, or made
    anew.
    """
    place = parse_location("logDir", log_dir)
    if "://" not in place:
        folder = Path(place) / "sources" / name
        return str(folder), str(folder / "log")
    if not place.partition("://")[2].strip("/"):
        raise refused(
            "logDir", place, "a folder, or a bucket and what is in it: s3://bucket/prefix"
        )
    log = f"{place.rstrip('/')}/sources/{name}/log"
    mark = hashlib.sha256(log.encode()).hexdigest()[:16]
    return str(stored_folders() / f"{name}-{mark}"), log


def stored_folders() -> Path:
    """Return where the folders on this machine are of logs in object stores."""
    return private_folder("stored-sources")


def _as_name(text: str) -> str:
    """Return `text` as the name of a folder; what cannot stand in one is replaced by a hash."""
    plain = re.sub(r"[^\w.-]", "-", text)[:80]
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


__all__ = [
    "SourceOptions",
    "address",
    "check_known",
    "duration",
    "port_of",
    "refused",
    "seconds",
    "source_options",
    "stored_folders",
    "truth",
    "whole",
]
