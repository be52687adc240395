"""What a command is told to look into: a folder, or the URL of an object store."""

from __future__ import annotations

from collections.abc import Sequence

from clonos import _core
from clonos._config import parse_location
from clonos.errors import ConfigError


def location_of(path: str, options: Sequence[str]) -> tuple[str, _core.Location]:
    """Return the absolute path, or the URL, and what the core opens.

    Parameters
    ----------
    path : str
        As it was given on the command line.
    options : sequence of str
        What an object store is told, each as ``NAME=VALUE``.

    Raises
    ------
    ConfigError
        For another URL, and for options that are none or have no store. No value is told.
    """
    found = parse_location("path", path)
    told = options_of(options)
    if told and "://" not in found:
        message = f"--storage-option is for object stores, and {found} is a folder"
        raise ConfigError(message, "CONFIG")
    return found, _core.Location(found, options=told)


def options_of(options: Sequence[str]) -> dict[str, str]:
    """Return what an object store is told, each given as ``NAME=VALUE``.

    Raises
    ------
    ConfigError
        If one is none. No value is told.
    """
    told = {}
    for option in options:
        name, is_option, value = option.partition("=")
        if not is_option or not name:
            message = "--storage-option is no NAME=VALUE, such as region=eu-west-1"
            raise ConfigError(message, "CONFIG")
        told[name] = value
    return told
