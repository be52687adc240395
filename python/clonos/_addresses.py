"""Texts without the addresses of classes, which are others in each process."""

from __future__ import annotations

import re
from collections.abc import Mapping

from clonos._held import name_of

# As `id(kind)` is written: the number itself, or as in the text of an object.
_ADDRESS = re.compile(r"(?<![0-9A-Za-z])(?:0x[0-9a-f]{6,16}|[1-9][0-9]{6,19})(?![0-9A-Za-z])")


def without_addresses(text: str, classes: Mapping[int, type]) -> str:
    """Return a text in which classes have their names where their addresses stood.

    Libraries tell classes of one name apart by the address behind the name, as pydantic does in its
    schemas. A number that is an address by chance does not stand beside the name.

    Parameters
    ----------
    text : str
    classes : mapping
        All classes by their addresses.
    """

    def named(match: re.Match[str]) -> str:
        number = match.group()
        kind = classes.get(_address(number))
        return number if kind is None or kind.__name__ not in text else name_of(kind)

    return _ADDRESS.sub(named, text)


def has_addresses(text: str) -> bool:
    """Whether there are numbers in a text that may be addresses."""
    return _ADDRESS.search(text) is not None


def _address(number: str) -> int:
    return int(number, 16 if number.startswith("0x") else 10)


def classes_by_address() -> dict[int, type]:
    """Return all classes that there are."""
    found: dict[int, type] = {}
    pending: list[type] = [object]
    while pending:
        kind = pending.pop()
        if id(kind) not in found:
            found[id(kind)] = kind
            pending.extend(type.__subclasses__(kind))
    return found
