"""Transactions on a PostgreSQL server that may be away for a while."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from clonos.errors import ConfigError, SinkUnreachable

Result = TypeVar("Result")

_FIRST_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 3.0
_CONNECT_SECONDS = 10
# Of refused connections there is only the server's message to tell them apart by.
_HOPELESS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "invalid")


def psycopg() -> Any:
    """Return the client library.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import psycopg as module
    except ImportError as error:
        message = (
            "clonos-postgresql needs psycopg on the driver and the executors: "
            "pip install clonos[postgresql]"
        )
        raise ConfigError(message, "CONFIG") from error
    return module


class Client:
    """Runs transactions, each in a connection of its own.

    Parameters
    ----------
    url : str
        What libpq takes: a URI or ``name=value`` pairs.
    retry_seconds : float
        How long to go on trying while the server is away.
    """

    def __init__(self, url: str, retry_seconds: float) -> None:
        self._url = url
        self._retry_seconds = retry_seconds
        self._psycopg = psycopg()

    def transact(self, work: Callable[[Any], Result], *, again: bool = True) -> Result:
        """Run `work` in a transaction and commit it.

        Parameters
        ----------
        work : callable
            Takes a connection. Called again after a failure of the server or the network.
        again : bool
            Whether it may be called again once it has begun: a commit that was not answered may
            have happened.

        Raises
        ------
        SinkUnreachable
            If the server did not come back in time.
        """
        deadline, pause = None, _FIRST_PAUSE_SECONDS
        while True:
            begun = False
            try:
                with self._psycopg.connect(self._url, connect_timeout=_CONNECT_SECONDS) as link:
                    begun = True
                    return work(link)
            except self._psycopg.OperationalError as error:
                hopeless = not begun and any(word in str(error) for word in _HOPELESS)
                if hopeless or (begun and not again):
                    raise
                now = time.monotonic()
                deadline = deadline or now + self._retry_seconds
                if now >= deadline:
                    raise self._away(error) from error
            time.sleep(min(pause * random.uniform(0.5, 1), max(deadline - now, 0)))  # noqa: S311
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    def try_once(self, work: Callable[[Any], object]) -> None:
        """Run `work` in a transaction; it does not matter if it fails."""
        try:
            with self._psycopg.connect(self._url, connect_timeout=_CONNECT_SECONDS) as link:
                work(link)
        except self._psycopg.Error:
            pass

    def _away(self, error: Exception) -> SinkUnreachable:
        # Not the URL: there may be a password in it.
        message = (
            f"PostgreSQL could not be used for {self._retry_seconds:g} s (option retrySeconds): "
            f"{str(error).strip()}. Nothing of this transaction was written for certain; the query "
            "goes on with the same epoch when it is started again"
        )
        return SinkUnreachable(message, "SINK_UNREACHABLE")
