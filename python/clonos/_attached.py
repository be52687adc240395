"""Which session there is: what operators ask when they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.udf import UserDefinedFunction

    from clonos import _core


class Attached(Protocol):
    """What is known of the attached session: `clonos.Session`."""

    spark: SparkSession
    config: _core.SessionConfig

    @property
    def is_active(self) -> bool: ...

    def stop(self) -> None: ...

    def watch(self, spark: SparkSession) -> None: ...

    def watch_streams(self) -> None: ...

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


def current_config() -> _core.SessionConfig | None:
    """Return the configuration of the attached session, if there is one."""
    session = current()
    return None if session is None else session.config
