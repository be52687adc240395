"""What ``clonos doctor`` says of one thing."""

from __future__ import annotations

from dataclasses import dataclass

# Of an agent among hundreds: a connection to each, and the files of logs that were spilled.
_FILES = 4096


@dataclass(frozen=True)
class Finding:
    """One check: is it well, what was seen, and what to do if not; or `known`, to be thought of."""

    ok: bool
    what: str
    advice: str = ""
    known: bool = False


def files(limit: int) -> Finding:
    """Whether processes may have enough files open; `limit` is -1 if there is no end."""
    return Finding(
        limit == -1 or limit >= _FILES,
        "no limit of open files" if limit == -1 else f"at most {limit} open files",
        f"an agent holds one for each other and for what it spills: raise `ulimit -Hn` to {_FILES} "
        "or more",
    )
