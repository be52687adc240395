"""Columns of the causal services: ``clonos.now()``, ``clonos.rand()``, ``clonos.uuid()``.

Spark's own ``current_timestamp``, ``rand`` and ``uuid`` are fixed when a batch is planned, and
planned afresh when it runs again. These are recorded.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clonos import _services

if TYPE_CHECKING:
    from pyspark.sql import Column

RowKey = Any


def now(row_key: RowKey | Sequence[RowKey] | None = None, *, uid: str = "clonos.now") -> Column:
    """Processing time of each row, as a timestamp column; read once per Arrow batch.

    For windows, watermarks and aggregates take it as a column first: Spark copies an expression in
    ``window(...)`` into both ends of the window, and would read the clock for each.

    Parameters
    ----------
    row_key : column, name, "*", or a list of them, optional
        Columns that identify a row; needed downstream of a shuffle, where rows may come back in
        another order.
    uid : str
        Operator name; give each its own where a query has several.

    Returns
    -------
    pyspark.sql.Column
        Timestamps with microseconds.

    Examples
    --------
    >>> timed = words.withColumn("ts", clonos.now())  # doctest: +SKIP
    >>> timed.groupBy(window("ts", "5 seconds"), "word").count()  # doctest: +SKIP
    """
    return _column("now", uid, row_key)


def rand(row_key: RowKey | Sequence[RowKey] | None = None, *, uid: str = "clonos.rand") -> Column:
    """Random doubles in [0, 1): the same when a task runs again. One seed per task is recorded.

    Parameters are those of `now`.
    """
    return _column("rand", uid, row_key)


def uuid(row_key: RowKey | Sequence[RowKey] | None = None, *, uid: str = "clonos.uuid") -> Column:
    """Random UUIDs (version 4) as strings: the same when a task runs again.

    Parameters are those of `now`.
    """
    return _column("uuid", uid, row_key)


def _now(rows: pa.Array) -> pa.Array:
    reading = pa.scalar(time.time_ns() // 1000, pa.int64())
    return pa.repeat(reading, len(rows)).cast(pa.timestamp("us", tz="UTC"))


def _rand(_row: Any) -> float:
    return _services.random.random()


def _new_uuid(_row: Any) -> str:
    return str(_services.uuid4())


def _column(name: str, uid: str, row_key: Any) -> Column:
    from pyspark.sql import functions

    make = _makers()[name](uid)
    # An iterator UDF needs a column; where nothing identifies the row, any constant serves.
    return make(functions.lit(True), row_key=row_key)  # type: ignore[no-any-return]


@functools.cache
def _makers() -> dict[str, Callable[[str], Any]]:
    from clonos._operators.udf import _Vectorised, causal

    arrow_now: Any = _Vectorised(_now, "arrow", "timestamp")
    return {
        "now": functools.cache(lambda uid: causal(uid=uid)(arrow_now)),
        "rand": functools.cache(lambda uid: causal("double", uid=uid, record="services")(_rand)),
        "uuid": functools.cache(
            lambda uid: causal("string", uid=uid, record="services")(_new_uuid)
        ),
    }


__all__ = ["now", "rand", "uuid"]
