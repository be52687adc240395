"""Operators on whole partitions, under which the causal services are causal."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from clonos import _core
from clonos._code import PYTHON_VERSION, code_fingerprint

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
    within partitions first.

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
    body = _dataframe_body(func, uid, pandas=False)
    return df.mapInArrow(body, schema)


def map_in_pandas(
    df: DataFrame,
    func: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]],
    schema: StructType | str,
    *,
    uid: str | None = None,
) -> DataFrame:
    """``DataFrame.mapInPandas`` in which the causal services are recorded; see `map_in_arrow`."""
    body = _dataframe_body(func, uid, pandas=True)
    return df.mapInPandas(body, schema)


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
    spec = _spec(func, uid)
    epoch = f"rdd-{next(_rdd_numbers)}"

    def body(elements: Iterable[T]) -> Iterator[U]:
        from clonos import _operators

        return _operators.run_elements(spec, func, epoch, iter(elements))

    return rdd.mapPartitions(body)


Spec = tuple[str, str, int, bytes | None]


def _spec(func: Callable[..., Any], uid: str | None) -> Spec:
    import warnings

    from clonos._session import current_config

    label = getattr(func, "__qualname__", type(func).__name__)
    name = uid or f"{getattr(func, '__module__', '')}.{label}"
    config = current_config()
    if config is None:
        warnings.warn(f"{name} is not recorded: call clonos.attach(spark) first", stacklevel=4)
    return name, label, code_fingerprint(func), None if config is None else config.to_bytes()


def _dataframe_body(func: Callable[..., Any], uid: str | None, *, pandas: bool) -> Any:
    spec = _spec(func, uid)

    def body(batches: Iterator[Any]) -> Iterator[Any]:
        from clonos import _operators

        return _operators.run_batches(spec, func, batches, pandas)

    return body


def _open(spec: Spec, epoch: str | None) -> _core.ServiceTask | None:
    """Open the task's log, or ``None`` where nothing is recorded."""
    from clonos._spark import worker
    from clonos._spark.lost import check_lost

    name, label, code, raw = spec
    if raw is None:
        return None
    config = _core.SessionConfig.from_bytes(raw)
    place = worker.current_place(config.app_id, epoch)
    if place is None or config.guarantee != "exactly_once":
        return None
    arguments = worker.task_arguments(config, place, name) | {
        "code": code,
        "python": PYTHON_VERSION,
        "label": label,
        "keyed": False,
        "allow_code_change": False,
        "count_occurrences": False,
    }
    task = worker.open_task(_core.ServiceTask, config, arguments)
    check_lost(task.lost, config, name, place)
    return task


def run_batches(
    spec: Spec, func: Callable[..., Any], batches: Iterator[Any], pandas: bool
) -> Iterator[Any]:
    """Run `func` over a partition's batches in a worker."""
    task = _open(spec, None)
    if task is None:
        return iter(func(batches))
    from clonos._spark.kinds import pandas_to_arrow
    from clonos._spark.service_runner import ServiceRunner

    def noted() -> Iterator[Any]:
        for batch in batches:
            task.input([pandas_to_arrow(batch)] if pandas else batch.columns)
            yield batch

    return ServiceRunner(task).pipelined(iter(func(noted())))


def run_elements(
    spec: Spec, func: Callable[..., Any], epoch: str, elements: Iterator[Any]
) -> Iterator[Any]:
    """Run `func` over a partition of an RDD in a worker."""
    task = _open(spec, epoch)
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
