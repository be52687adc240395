"""Which session there is: what operators ask when they are made."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from clonos.errors import ConfigError

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession
    from pyspark.sql.udf import UserDefinedFunction

    from clonos import _core
    from clonos._uses import Use


class Attached(Protocol):
    """What is known of the attached session: `clonos.Session`."""

    spark: SparkSession
    config: _core.SessionConfig

    @property
    def is_active(self) -> bool: ...

    def open_epochs(self) -> list[str]: ...

    def stop(self) -> None: ...

    def watch(self, spark: SparkSession) -> None: ...

    def watch_streams(self) -> None: ...

    def rdd_is_made(self, number: int, rdd: RDD[Any], use: Use) -> object: ...

    def partitions_of_rdd(self, number: int) -> int | None: ...

    def mark_rows(self, function: UserDefinedFunction, *, takes_marks: bool) -> None: ...


_current: Attached | None = None


def current() -> Attached | None:
    """Return the attached session, if there is one and Spark's own was not stopped under it."""
    return _current if _current is not None and _current.is_active else None


def latest() -> Attached | None:
    """Return the session that was attached last and not stopped, whatever became of Spark's."""
    return _current


def set_current(session: Attached | None) -> None:
    """Make `session` the attached one."""
    global _current
    _current = session


def check_replaceable() -> None:
    """Refuse to have another session in the place of the latest one, if work would be torn in two.

    Raises
    ------
    ConfigError
        If an epoch is open in it.
    """
    before = latest()
    if before is not None and before.is_active and (open_ones := before.open_epochs()):
        names = ", ".join(open_ones)
        message = (
            f"other settings stop the session there is, in which {names} is open, which would then "
            "be two epochs: attach before it begins, leave it first, or call session.stop()"
        )
        raise ConfigError(message, "CONFIG")


def current_config() -> _core.SessionConfig | None:
    """Return the configuration of the attached session, if there is one."""
    session = current()
    return None if session is None else session.config


def on_server() -> bool:
    """Whether this process runs what a client of Spark Connect has handed to a stream."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.sql.connect.streaming.worker")
