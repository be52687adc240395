"""Operators on whole partitions, under which the causal services are causal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from clonos import _attached
from clonos._operators.exchange import map_stage
from clonos._operators.spec import spec_of
from clonos._worker.libraries import LIBRARIES, Libraries
from clonos._worker.place import OfRdd

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

T = TypeVar("T")
U = TypeVar("U")
_rdd_numbers = itertools.count(1)


def map_in_arrow(
    df: DataFrame,
    func: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
    *,
    uid: str | None = None,
) -> DataFrame:
    """``DataFrame.mapInArrow`` in which the causal services are recorded.

    `func` runs again at replay and gets the recorded outcomes from `clonos.time`, `clonos.random`,
    `clonos.call` and the others. Its input must come back in the same order: after a shuffle, sort
    within partitions first, or put `clonos.exchange` in its place, which records the order.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
    func : callable
        From an iterator of record batches to an iterator of record batches.
    schema : StructType or str
        Schema of the output.
    uid : str, optional
        Stable name of the operator; default: the function's qualified name.

    Returns
    -------
    pyspark.sql.DataFrame
    """
    return map_stage(df, func, schema, uid)


def map_in_pandas(
    df: DataFrame,
    func: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]],
    schema: StructType | str,
    *,
    uid: str | None = None,
) -> DataFrame:
    """``DataFrame.mapInPandas`` in which the causal services are recorded; see `map_in_arrow`."""
    return df.mapInPandas(_dataframe_body(func, uid), schema)


def map_partitions(
    rdd: RDD[T], func: Callable[[Iterable[T]], Iterable[U]], *, uid: str | None = None
) -> RDD[U]:
    """``RDD.mapPartitions`` in which the causal services are recorded.

    Outside ``session.epoch`` the RDD is its own epoch: whenever Spark computes one of its
    partitions again, in whichever job, it gets the same answers. They are kept for as long as
    there is anything that may ask for them, an RDD, a frame or a job made of it. When the last of
    these is gone is known as the driver's JVM collects garbage, which Spark has it do every
    ``spark.cleaner.periodicGC.interval``.

    Parameters
    ----------
    rdd : pyspark.RDD
        Its elements must be picklable: their pickle is their fingerprint.
    func : callable
        From an iterator of elements to an iterable of elements.
    uid : str, optional
        Stable name of the operator; default: the function's qualified name.

    Returns
    -------
    pyspark.RDD
    """
    spec = spec_of(func, uid, stacklevel=4)
    number = next(_rdd_numbers)
    # What the function holds while anything may run it.
    alive: list[Any] = []

    def body(
        split: int,
        elements: Iterable[T],
        *,
        _libraries: Libraries = LIBRARIES,
        _alive: list[Any] = alive,
    ) -> Iterator[U]:
        from clonos._worker import partitions

        return partitions.run_elements(spec, func, OfRdd(number, split), iter(elements))

    made = rdd.mapPartitionsWithIndex(body)
    session = _attached.current()
    if session is not None and session.config.guarantee == "exactly_once":
        alive.append(session.rdd_is_made(number, made, spec.use))
    return made


def _dataframe_body(func: Callable[..., Any], uid: str | None) -> Any:
    spec = spec_of(func, uid)

    def body(batches: Iterator[Any], *, _libraries: Libraries = LIBRARIES) -> Iterator[Any]:
        from clonos._worker import partitions

        return partitions.run_pandas(spec, func, batches)

    return body
