"""Operators on whole partitions, under which the causal services are causal."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from clonos import _core
from clonos._code import PYTHON_VERSION
from clonos._exchange import map_stage
from clonos._spec import OperatorSpec, spec_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

T = TypeVar("T")
U = TypeVar("U")
# Elements of an RDD that are fingerprinted and published together.
RDD_CHUNK = 1000
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
    partitions again, in whichever job, it gets the same answers.

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
    epoch = f"rdd-{next(_rdd_numbers)}"

    def body(elements: Iterable[T]) -> Iterator[U]:
        from clonos import _operators

        return _operators.run_elements(spec, func, epoch, iter(elements))

    return rdd.mapPartitions(body)


def _dataframe_body(func: Callable[..., Any], uid: str | None) -> Any:
    spec = spec_of(func, uid)

    def body(batches: Iterator[Any]) -> Iterator[Any]:
        from clonos import _operators

        return _operators.run_pandas(spec, func, batches)

    return body


def open_task(
    spec: OperatorSpec, epoch: str | None, *, inside: bool = False
) -> _core.ServiceTask | None:
    """Open the task's log, or ``None`` where nothing is recorded.

    Parameters
    ----------
    spec : OperatorSpec
    epoch : str, optional
        Epoch to use where Spark names none.
    inside : bool
        Whether all that the task does leaves it in frames, which carry its determinants.
    """
    from clonos._spark import worker
    from clonos._spark.lost import check_lost

    if spec.config is None:
        return None
    config = _core.SessionConfig.from_bytes(spec.config)
    place = worker.current_place(config.app_id, epoch)
    if place is None or config.guarantee != "exactly_once":
        return None
    arguments = worker.task_arguments(config, place, spec.name) | {
        "code": spec.code,
        "python": PYTHON_VERSION,
        "label": spec.label,
        "inside": inside,
        "keyed": False,
        "allow_code_change": False,
        "count_occurrences": False,
    }
    task = worker.open_task(_core.ServiceTask, config, arguments)
    check_lost(task.lost, config, spec.name, place)
    return task


def run_pandas(
    spec: OperatorSpec, func: Callable[..., Any], batches: Iterator[Any]
) -> Iterator[Any]:
    """Run `func` over a partition's pandas batches in a worker."""
    task = open_task(spec, None)
    if task is None:
        return iter(func(batches))
    from clonos._spark.kinds import pandas_to_arrow
    from clonos._spark.service_runner import ServiceRunner

    def noted() -> Iterator[Any]:
        for batch in batches:
            task.input([pandas_to_arrow(batch)])
            yield batch

    return ServiceRunner(task).pipelined(iter(func(noted())))


def run_elements(
    spec: OperatorSpec, func: Callable[..., Any], epoch: str, elements: Iterator[Any]
) -> Iterator[Any]:
    """Run `func` over a partition of an RDD in a worker."""
    task = open_task(spec, epoch)
    if task is None:
        return iter(func(elements))
    from clonos._spark.service_runner import ServiceRunner

    def noted() -> Iterator[Any]:
        while chunk := list(itertools.islice(elements, RDD_CHUNK)):
            task.input_bytes(len(chunk), pickle.dumps(chunk, protocol=5))
            yield from chunk

    def chunks() -> Iterator[list[Any]]:
        results = iter(func(noted()))
        while chunk := list(itertools.islice(results, RDD_CHUNK)):
            yield chunk

    return itertools.chain.from_iterable(ServiceRunner(task).pipelined(chunks()))
