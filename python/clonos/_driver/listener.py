"""What Spark reports of its streaming queries.

========================================================= =============
private name of Spark's                                   seen in
========================================================= =============
``StreamingQueryListener._jlistener``                     4.3
``JStreamingQueryListener``                               4.3
``PythonStreamingQueryListenerWrapper``                   4.3
========================================================= =============
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

_log = logging.getLogger("clonos")


def progress_listener(
    started: Callable[[str, str | None, str], None], commit: Callable[[str, str, int], None]
) -> Any:
    """Return a listener of streaming queries.

    Parameters
    ----------
    started : callable
        Called with the ids of a query and of its run, and its name between them, before the run's
        first batch; Spark waits for it.
    commit : callable
        Called with the query, the run and the number of each batch that Spark has committed, some
        time after.
    """
    from pyspark import SparkContext
    from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

    class CommitListener(StreamingQueryListener):
        """Spark reports progress of a batch after it has committed it."""

        @cached_property
        def _jlistener(self) -> Any:
            jvm: Any = SparkContext._jvm
            return jvm.PythonStreamingQueryListenerWrapper(Heard(self))

        def onQueryStarted(self, event: Any) -> None:
            query = str(event.id().toString())
            try:
                started(query, event.name(), str(event.runId().toString()))
            except Exception as error:  # noqa: BLE001, whatever another Spark has otherwise
                # Spark passes over what fails here, and a query that was not looked at is admitted.
                _log.warning(
                    "query %s could not be looked at as it started (%s: %s): it must not track its "
                    "progress asynchronously (asyncProgressTrackingEnabled)",
                    query,
                    type(error).__name__,
                    error,
                )

        def onQueryProgress(self, event: Any) -> None:
            with contextlib.suppress(Exception):
                query, run = str(event.id().toString()), str(event.runId().toString())
                commit(query, run, int(event.batchId()))

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    class Heard(JStreamingQueryListener):
        """Takes of Java's reports what is needed.

        PySpark asks for all that is in one, each thing by a call of its own: a hundred calls or so,
        as long as a small batch takes. And it fails over the tags of the thread that started a
        query, which a client of Spark Connect always has.
        """

        def onQueryStarted(self, jevent: Any) -> None:
            self.pylistener.onQueryStarted(jevent)

        def onQueryProgress(self, jevent: Any) -> None:
            self.pylistener.onQueryProgress(jevent.progress())

        def onQueryIdle(self, jevent: Any) -> None:
            pass

        def onQueryTerminated(self, jevent: Any) -> None:
            pass

    return CommitListener()
