"""Columns that are recorded: `now`, `rand` and `uuid`, used as ``pyspark.sql.functions`` are.

Spark's own ``current_timestamp``, ``rand`` and ``uuid`` are fixed when a batch is planned, and
planned afresh when it runs again. Inside a function take `clonos.time`, `clonos.random` and
`clonos.uuid4`: those are values, these are columns.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clonos import _services

if TYPE_CHECKING:
    from pyspark.sql import Column

RowKey = Any

# The two highest bits of this digit of a UUID are 10.
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def now(*, row_key: RowKey | Sequence[RowKey] | None = None, uid: str = "clonos.now") -> Column:
    """Processing time of each row, as a timestamp column; read once per Arrow batch.

    For windows, watermarks and aggregates take it as a column first: Spark copies an expression in
    ``window(...)`` into both ends of the window, and would read the clock for each.

    Parameters
    ----------
    row_key : column, name, "*", or a list of them, optional
        Columns that identify a row. Downstream of a shuffle, where rows may come back in another
        order, they go by what else is read of a row, if nothing is given.
    uid : str
        Operator name; give each its own where a query has several.

    Returns
    -------
    pyspark.sql.Column
        Timestamps with microseconds.

    Examples
    --------
    >>> timed = words.withColumn("ts", clonos.functions.now())  # doctest: +SKIP
    >>> timed.groupBy(window("ts", "5 seconds"), "word").count()  # doctest: +SKIP
    """
    return _column("now", uid, row_key)


def rand(
    seed: int | None = None,
    *,
    row_key: RowKey | Sequence[RowKey] | None = None,
    uid: str = "clonos.rand",
) -> Column:
    """Random doubles in [0, 1): the same when a task runs again.

    One seed per task is recorded; behind a shuffle, where rows come in another order, each number.

    Parameters
    ----------
    seed : int, optional
        Begin each partition's numbers here, so that another epoch over the same rows in the same
        order draws the same ones. Then the order of rows counts, and `row_key` does not.
        Default: a new seed for each task.
    row_key, uid
        As for `now`.

    Returns
    -------
    pyspark.sql.Column
    """
    return _column("rand" if seed is None else f"rand {seed}", uid, row_key)


def uuid(*, row_key: RowKey | Sequence[RowKey] | None = None, uid: str = "clonos.uuid") -> Column:
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
    # What `str(clonos.uuid4())` gives, in two thirds of the time.
    digits = f"{_services.random.getrandbits(128):032x}"
    return (
        f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}"
        f"-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"
    )


@dataclass(frozen=True)
class _Seeded:
    """Numbers of a partition that follow from `seed` and nothing else."""

    seed: int

    def __call__(self, batches: Iterator[Any]) -> Iterator[pa.Array]:
        from pyspark import TaskContext

        task = TaskContext.get()
        stream = random.Random(f"{self.seed} {task.partitionId() if task else 0}")  # noqa: S311
        for batch in batches:
            rows = len(batch[0] if isinstance(batch, tuple) else batch)
            yield pa.array([stream.random() for _ in range(rows)], pa.float64())


def _column(name: str, uid: str, row_key: Any) -> Column:
    from pyspark.sql import functions

    # An iterator UDF needs a column; where nothing identifies the row, any constant serves.
    return _made(name, uid)(functions.lit(True), row_key=row_key)  # type: ignore[no-any-return]


@functools.cache
def _made(name: str, uid: str) -> Any:
    """Return the causal function of a column; one object for each, as its uses are told apart."""
    from clonos._operators.declaration import Declaration
    from clonos._operators.udf import causal

    vectorised: Any
    if name == "now":
        vectorised = Declaration(_now, "arrow", "timestamp", "now")
        return causal(uid=uid)(vectorised)
    if name == "uuid":
        return causal("string", uid=uid, record="services")(_new_uuid)._copy(_draws=True)
    _, _, seed = name.partition(" ")
    if not seed:
        return causal("double", uid=uid, record="services")(_rand)._copy(_draws=True)
    vectorised = Declaration(_Seeded(int(seed)), "arrow_iter", "double", "rand")
    return causal(uid=uid, record="services")(vectorised)


__all__ = ["now", "rand", "uuid"]
