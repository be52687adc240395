"""Plans of ``toLocalIterator``, whose tasks run when Spark has forgotten them.

Private names of Spark, seen in 4.1, 4.2 and 4.3: ``LiveListenerBus.addToQueue`` and ``post``,
``SparkListenerSQLExecutionStart.details``, ``SparkListenerSQLExecutionEnd.qe``.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from clonos._driver import compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Its own queue: nobody else makes it wait.
_QUEUE = "clonos"
# How long Spark may take to tell of what has happened.
_EVENTS_MS_MAX = 5000
_log = logging.getLogger("clonos")


class LocalIterators:
    """Listens to an application's executions, and keeps the plans of the last of these.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The attached session.
    """

    def __init__(self, spark: SparkSession) -> None:
        jcontext: Any = spark.sparkContext._jsc
        self._context = jcontext.sc()
        self._listener: Any = None
        try:
            bus = self._context.listenerBus()
            uses = ("Columns", "Order")
            self._listener = compiled.made(spark, "LocalIterators", bus, uses=uses)
            bus.addToQueue(self._listener, _QUEUE)
        except Exception as error:  # noqa: BLE001, whatever another Spark has otherwise
            self._listener = None
            _log.warning(
                "this Spark does not tell the plans of toLocalIterator: only the same DataFrame, "
                "not one that is made again, gets in it what is recorded (%s)",
                error,
            )

    def query(self, execution: int) -> Any:
        """The plans of an execution that is over; ``None`` of any other."""
        if self._listener is None:
            return None
        return self._listener.find(execution, _EVENTS_MS_MAX)

    def end(self) -> None:
        """Listen no more."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # Of a Spark that was stopped nothing is left to listen to.
            with contextlib.suppress(Exception):
                self._context.removeSparkListener(listener)
