"""What Spark reports of its streaming queries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


def progress_listener(started: Callable[[str], None], commit: Callable[[str, int], None]) -> Any:
    """Return a listener of streaming queries.

    Parameters
    ----------
    started : callable
        Called with the id of a query before its first batch; Spark waits for it.
    commit : callable
        Called with the query and the number of each batch that Spark has committed.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class CommitListener(StreamingQueryListener):
        """Spark reports progress of a batch after it has committed it."""

        def onQueryStarted(self, event: Any) -> None:
            with contextlib.suppress(Exception):
                started(str(event.id))

        def onQueryProgress(self, event: Any) -> None:
            with contextlib.suppress(Exception):
                commit(str(event.progress.id), int(event.progress.batchId))

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    return CommitListener()
