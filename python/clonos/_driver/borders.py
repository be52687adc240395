"""By what the rows of a stage are cut into tasks, as Spark runs it.

Private names of Spark, seen in 4.3: what `Borders.java` imports and finds in the closures of a
shuffle: its ``Partitioning``, and ``RangePartitioner.rangeBounds``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clonos._driver import compiled, spark_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("clonos")


def stage_borders(
    spark: SparkSession, query_of: Callable[[Any], Any]
) -> Callable[[int, Any], int | None]:
    """Return what tells the borders of a stage, given its number and what Spark knows of it.

    `query_of` gives the query that a stage is of, or ``None``. The borders are a hash of 32 bits
    that is the same in each process, whose lowest bit says whether rows may be elsewhere though it
    is the same; see `Borders.java`. ``None`` of a stage of no query, and where this Spark cannot
    tell: then there is what its plan says.
    """
    # Of the newest stages: tasks that are run again ask about theirs once more.
    known: dict[int, int | None] = {}
    failed = False
    turn = threading.Lock()

    def read(stage: Any) -> int | None:
        nonlocal failed
        try:
            query = query_of(stage)
            if query is None:
                # A job over a frame's RDD: which of two columns of one name is meant nobody says.
                return None
            found = int(compiled.made(spark, "Borders", stage.rdd(), query.analyzed()).hash())
        except Exception as error:  # noqa: BLE001, whatever another Spark has otherwise
            if not failed and spark_private.is_running(spark):
                failed = True
                _log.warning(
                    "this Spark does not tell by what it cuts the rows of a stage into tasks: if "
                    "it cuts them otherwise into as many, that is known from its plan only (%s)",
                    error,
                )
            return None
        return found if found >= 0 else None

    def of_stage(number: int, stage: Any) -> int | None:
        with turn:
            if number not in known:
                known[number] = read(stage)
                if len(known) > spark_private.STAGES_MAX:
                    del known[next(iter(known))]
            return known[number]

    return of_stage
