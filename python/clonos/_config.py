"""Settings of a session: parsing of what users write, checked before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from clonos.errors import ConfigError

# What choices there are, for editors and for the checks.
Record = Literal["result", "services"]
Per = Literal["row", "value"]
Flush = Literal["auto", "batch", "call"]
OnError = Literal["raise", "null", "record"]
Guarantee = Literal["exactly_once", "at_least_once"]
AgentScope = Literal["executor", "host"]
OnLost = Literal["rollback", "at_least_once"]
OnAmbiguous = Literal["error", "any"]
Compression = Literal["lz4", "none"]
Adopt = Literal["udf", "transformWithState"]
SpillPolicy = Literal["availability", "eager", "epoch", "off"]

ADOPTABLE: tuple[str, ...] = get_args(Adopt)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?\s*$", re.IGNORECASE)
FULL_DEPTH = 2**32 - 1
SECONDS_MAX = 60
# What a URL may begin with.
OBJECT_STORES = ("s3", "s3a", "gs", "abfs", "abfss")
# Environment variable with the name of the node that a process runs on.
HOST_LABEL = "CLONOS_HOST_LABEL"
NETWORK_TIMEOUT = "spark.network.timeout"
_SPARK_TIME = re.compile(r"^\s*(\d+)\s*(us|ms|s|m|min|h|d)?\s*$", re.IGNORECASE)
_MILLISECONDS = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
PORT_MAX = 65_535
# What a user may ask to listen on who means all of a machine's.
ALL_ADDRESSES = {"0.0.0.0", "::", "[::]", ""}  # noqa: S104
IO_TIMEOUT_SECONDS = (0.1, 600)
# By which Spark encrypts what crosses the network, and what it writes to local disks.
NETWORK_ENCRYPTED = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
)
DISK_ENCRYPTED = ("spark.io.encryption.enabled",)
BATCHES_RETAINED = "spark.sql.streaming.minBatchesToRetain"


def parse_size(setting: str, value: int | str) -> int:
    """Bytes meant by ``512``, ``"512MiB"``, ``"512m"`` (binary units, as Spark's own).

    Parameters
    ----------
    setting : str
        Name used in the error.
    value : int or str
        Size in bytes, or a number with a unit of KiB, MiB, GiB or TiB.

    Raises
    ------
    ConfigError
        If the value is not a size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value > 0:
            return value
    elif isinstance(value, str):
        match = _SIZE.match(value)
        if match:
            return int(float(match[1]) * _UNITS[match[2].lower()])
    message = f"{setting}={value!r} is not a size; write bytes or a number with a unit: '512MiB'"
    raise ConfigError(message, "CONFIG")


def parse_depth(value: int | str, setting: str = "sharing_depth") -> int:
    """Sharing depth, or number of standbys; ``"full"`` is every agent there is.

    Raises
    ------
    ConfigError
        If the value is neither a whole number from 0 on nor ``"full"``.
    """
    if value == "full":
        return FULL_DEPTH
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < FULL_DEPTH:
        return value
    message = f"{setting}={value!r} is not 0, 1, 2, … or 'full'"
    raise ConfigError(message, "CONFIG")


def parse_retained(value: str) -> int:
    """Epochs of keyed state to keep: as many as Spark keeps micro-batches.

    Raises
    ------
    ConfigError
        If it is no number from 1 on.
    """
    if value.strip().isdigit() and 1 <= int(value) <= FULL_DEPTH:
        return int(value)
    message = f"{BATCHES_RETAINED}={value!r} is not a number of batches from 1 on"
    raise ConfigError(message, "CONFIG")


def one_of(setting: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return `value` if it is allowed.

    Raises
    ------
    ConfigError
        Names the setting and what it may be.
    """
    if value not in allowed:
        message = f"{setting}={value!r}: it must be one of {', '.join(map(repr, allowed))}"
        raise ConfigError(message, "CONFIG")
    return value


def choice(setting: str, value: str, choices: Any) -> str:
    """Return `value` if it is one of the `choices`, a ``Literal``.

    Raises
    ------
    ConfigError
        Names the setting and what it may be.
    """
    return one_of(setting, value, get_args(choices))


def parse_adopt(value: object) -> tuple[str, ...]:
    """Names of what is adopted, each once; a single text is one.

    Raises
    ------
    ConfigError
        If one is unknown; lists what there is.
    """
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Iterable) or isinstance(names, bytes):
        listed = ", ".join(map(repr, ADOPTABLE))
        message = f"adopt={value!r} is no list of names: there are {listed}"
        raise ConfigError(message, "CONFIG")
    given = [one_of("adopt", name, ADOPTABLE) for name in names]
    return tuple(name for name in ADOPTABLE if name in given)


def parse_spill_policy(value: str | None, agent_scope: str) -> str:
    """Spill policy; where agents share their executors' fate, keeping frames is off by default.

    Raises
    ------
    ConfigError
        If the value is no policy.
    """
    if value is None:
        return "availability" if agent_scope == "host" else "off"
    return choice("spill_policy", value, SpillPolicy)


def parse_seconds(name: str, value: float, units: int) -> int:
    """Return a time that is given in seconds, of which `units` make one, in these.

    Raises
    ------
    ConfigError
        If the value is not between 0 and one minute.
    """
    if type(value) in {int, float} and 0 <= value <= SECONDS_MAX:
        return round(value * units)
    message = f"{name}={value!r} is not between 0 and {SECONDS_MAX} seconds"
    raise ConfigError(message, "CONFIG")


def parse_options(value: object) -> dict[str, str]:
    """Options of an object store, names and values as text. No message shows a value.

    Raises
    ------
    ConfigError
        If it is no mapping of texts.
    """
    given = {} if value is None else value
    if isinstance(given, Mapping) and all(
        isinstance(text, str) for item in given.items() for text in item
    ):
        return dict(given)
    message = "storage_options is no mapping of names to values that are text"
    raise ConfigError(message, "CONFIG")


def parse_checkpoint_dir(path: str | os.PathLike[str] | None) -> str | None:
    """Return the absolute path of a folder, or the URL of an object store as it is.

    Raises
    ------
    ConfigError
        If it is another URL.
    """
    return None if path is None else parse_location("checkpoint_dir", path)


def parse_spill_dir(path: str | os.PathLike[str] | None) -> str | None:
    """Return the path of a folder, which each host has of its own.

    Raises
    ------
    ConfigError
        If it is no path.
    """
    return None if path is None else _text_of("spill_dir", path)


def _text_of(setting: str, path: object) -> str:
    text = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
    if not isinstance(text, str):
        message = f"{setting}={path!r} is neither text nor a pathlib.Path"
        raise ConfigError(message, "CONFIG")
    return text


def parse_location(setting: str, path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a folder, or the URL of an object store as it is.

    Parameters
    ----------
    setting : str
        Name used in the error.
    path : path or URL
        As the user gave it.

    Raises
    ------
    ConfigError
        If it is no path, another URL, or one of which a ``pathlib.Path`` was made.
    """
    given = _text_of(setting, path).removeprefix("file://").removeprefix("file:")
    text = without_secrets(given)
    if text != given:
        message = f"{setting}={text!r} has something secret in it: give that as storage_options"
        raise ConfigError(message, "CONFIG")
    scheme, is_url, _ = text.partition("://")
    if is_url and scheme in OBJECT_STORES:
        return text
    listed = ", ".join(f"{scheme}://" for scheme in OBJECT_STORES)
    if is_url:
        message = (
            f"{setting}={text!r} must be a folder of a file system that driver and executors "
            f"mount, or in an object store: {listed}"
        )
        raise ConfigError(message, "CONFIG")
    if text.partition(":/")[0] in OBJECT_STORES and ":/" in text:
        message = (
            f"{setting}={text!r} lacks a slash, as URLs do of which a pathlib.Path was made: give "
            "it as text, and write two"
        )
        raise ConfigError(message, "CONFIG")
    if not text.strip():
        # The folder in which the program happens to be started is nobody's choice.
        message = f"{setting} is empty: name a folder, or leave it out"
        raise ConfigError(message, "CONFIG")
    return str(Path(text).absolute())


def without_secrets(text: str) -> str:
    """Return a URL, as it may be shown, without the name and password in it."""
    return re.sub(r"(?<=://)[^/]*:.*@", "***@", text)


def parse_io_timeout(value: float) -> int:
    """Milliseconds of a time to wait, given in seconds.

    Raises
    ------
    ConfigError
        If the value is not between 0.1 and 600 seconds.
    """
    least, most = IO_TIMEOUT_SECONDS
    if type(value) in {int, float} and least <= value <= most:
        return round(value * 1000)
    message = f"io_timeout={value!r} is not between {least} and {most} seconds"
    raise ConfigError(message, "CONFIG")


def parse_encrypt(value: object, settings: Any) -> dict[str, bool]:
    """What is encrypted: connections and spilled logs, by default each as Spark's own.

    Raises
    ------
    ConfigError
        If the value is neither a truth nor None.
    """
    if value is not None and not isinstance(value, bool):
        message = f"encrypt={value!r} is not True, False, or None for as Spark does"
        raise ConfigError(message, "CONFIG")
    network, disk = (
        bool(switched_on(settings, names)) if value is None else value
        for names in (NETWORK_ENCRYPTED, DISK_ENCRYPTED)
    )
    return {"encrypt": network, "encrypt_spill": disk}


def switched_on(settings: Any, names: Iterable[str]) -> list[str]:
    """Those of Spark's switches that are on, given its ``SparkConf``."""
    return [name for name in names if settings.get(name, "false").strip().lower() == "true"]


def parse_ports(value: str | int | None, setting: str = "agent_ports") -> tuple[int, int]:
    """First and last of a range such as ``"40000-40100"``, or one port; ``(0, 0)`` is any.

    Raises
    ------
    ConfigError
        If it is no range of ports from 1 to 65,535.
    """
    if value is None:
        return 0, 0
    first, dash, last = str(value).partition("-")
    digits = [text.strip() for text in (first, last if dash else first)]
    if all(text.isdecimal() for text in digits):
        least, most = (int(text) for text in digits)
        if 1 <= least <= most <= PORT_MAX:
            return least, most
    message = (
        f"{setting}={value!r} is no range of ports from 1 to {PORT_MAX:,}, such as '40000-40100'"
    )
    raise ConfigError(message, "CONFIG")


def parse_port(setting: str, value: object) -> int:
    """Return a port; 0 is any.

    Raises
    ------
    ConfigError
        If it is no whole number from 0 to 65,535.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= PORT_MAX:
        return value
    message = f"{setting}={value!r} is no port: a whole number from 1 to {PORT_MAX:,}, or 0 for any"
    raise ConfigError(message, "CONFIG")


def parse_name(setting: str, value: object) -> str | None:
    """Return a name, or None if there is none.

    Raises
    ------
    ConfigError
        If it is no text, or an empty one.
    """
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    message = f"{setting}={value!r} is no name: write text, or leave it out"
    raise ConfigError(message, "CONFIG")


def parse_network_timeout(value: str) -> int:
    """Milliseconds of ``spark.network.timeout``: a number with a unit, or of seconds.

    Raises
    ------
    ConfigError
        If it is no time, or none at all.
    """
    match = _SPARK_TIME.match(value)
    millis = 0.0 if match is None else int(match[1]) * _MILLISECONDS[(match[2] or "s").lower()]
    if millis >= 1:
        return round(millis)
    message = f"{NETWORK_TIMEOUT}={value!r} is not a time; write seconds, or a number with a unit"
    raise ConfigError(message, "CONFIG")
