"""Options of the sinks, checked before anything is written. Names are not case-sensitive."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from clonos._config import one_of, parse_size
from clonos.errors import ConfigError

# Options that Spark itself sets or reads, whichever the sink.
_SPARKS_OWN = {"checkpointlocation", "queryname", "path"}
_COMMON = {"guarantee", "epoch"}


class Guarantee(enum.Enum):
    """How often each row of an epoch is in the target after failures."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


def refuse(name: str, value: object, what: str) -> ConfigError:
    """Return the error about option `name`, which should have been `what`."""
    return ConfigError(f"option {name}={value!r}: {what}", "CONFIG")


class Options:
    """What the user wrote, with the names that a sink understands.

    Parameters
    ----------
    sink : str
        Name of the sink, for messages.
    given : Mapping of str to str
        Options as Spark hands them on.
    known : tuple of str
        Names that the sink understands, spelled as in its documentation. One that ends in a dot
        stands for all that begin so.

    Raises
    ------
    ConfigError
        If an option is not known: a misspelt one would be ignored.
    """

    def __init__(self, sink: str, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self.sink = sink
        self._given = {name.lower(): value for name, value in given.items()}
        names = _SPARKS_OWN | _COMMON | {name.lower() for name in known}
        prefixes = tuple(name for name in names if name.endswith("."))
        for name in self._given:
            if name not in names and not name.startswith(prefixes):
                message = f"{sink} has no option {name!r}; it has: {', '.join(sorted(known))}"
                raise ConfigError(message, "CONFIG")

    def text(self, name: str, default: str | None = None) -> str:
        """Return option `name`, which must be there unless there is a default.

        Raises
        ------
        ConfigError
            If it is missing or empty.
        """
        value = self._given.get(name.lower(), default)
        if value is None or not value.strip():
            raise ConfigError(f"{self.sink} needs option {name!r}", "CONFIG")
        return value

    def maybe(self, name: str) -> str | None:
        """Return option `name`, None if it was not given."""
        return self._given.get(name.lower())

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return option `name`, one of `allowed`, of which the first is the default."""
        return one_of(f"option {name}", self._given.get(name.lower(), allowed[0]), allowed)

    def size(self, name: str, default: str) -> int:
        """Return option `name` in bytes."""
        value = self._given.get(name.lower(), default)
        return parse_size(f"option {name}", int(value) if value.isdecimal() else value)

    def seconds(self, name: str, default: float) -> float:
        """Return option `name` in seconds, from 0 on.

        Raises
        ------
        ConfigError
            If it is not such a number.
        """
        value = self._given.get(name.lower(), str(default))
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1
        if not 0 <= seconds < float("inf"):
            raise refuse(name, value, "it must be a number of seconds, 0 or more")
        return seconds

    def names(self, name: str) -> list[str]:
        """Return the comma-separated names in option `name`."""
        return [part.strip() for part in self._given.get(name.lower(), "").split(",") if part]

    def prefixed(self, prefix: str) -> dict[str, str]:
        """Return the options whose names begin with `prefix`, without it, in lower case."""
        return {n[len(prefix) :]: v for n, v in self._given.items() if n.startswith(prefix)}

    def guarantee(self) -> Guarantee:
        """Return option ``guarantee``."""
        return Guarantee(self.choice("guarantee", tuple(level.value for level in Guarantee)))

    def local_path(self) -> str:
        """Return option ``path`` as a path of a mounted file system.

        Raises
        ------
        ConfigError
            If it is missing, or a URI of another kind of storage.
        """
        path = self.text("path")
        parts = urlsplit(path)
        if parts.scheme in {"", "file"}:
            return unquote(parts.path) if parts.scheme else path
        raise refuse("path", path, f"{self.sink} writes to mounted file systems only")
