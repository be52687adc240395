"""Runs one attempt of an operator on a whole partition."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from clonos import _core
from clonos._services import record_nothing
from clonos._spec import OperatorSpec
from clonos._worker import connection
from clonos._worker.groups import image
from clonos._worker.lost import check_lost
from clonos._worker.place import OfRdd, current_place
from clonos._worker.service_runner import ServiceRunner

# Elements of an RDD that are fingerprinted and published together.
RDD_CHUNK = 1000


def open_task(
    spec: OperatorSpec,
    epoch: str | None,
    *,
    inside: bool = False,
    of_rdd: OfRdd | None = None,
) -> _core.ServiceTask | None:
    """Open the task's log, or ``None`` where nothing is recorded.

    Parameters
    ----------
    spec : OperatorSpec
    epoch : str, optional
        Epoch to use where Spark names none.
    inside : bool
        Whether all that the task does leaves it in frames, which carry its determinants.
    of_rdd : OfRdd, optional
        As for `current_place`.
    """
    if spec.config is None:
        record_nothing()
        return None
    config = _core.SessionConfig.from_bytes(spec.config)
    place = current_place(config.app_id, epoch, of_rdd=of_rdd)
    if place is None:
        return None
    if config.guarantee != "exactly_once":
        record_nothing()
        return None
    arguments = connection.task_arguments(config, place, spec.use) | {
        "label": spec.label,
        "inside": inside,
        "keyed": False,
        "allow_code_change": spec.allow_code_change,
        "count_occurrences": False,
    }
    task = connection.open_task(_core.ServiceTask, config, arguments)
    check_lost(task, config, spec.name, place)
    return task


def run_pandas(
    spec: OperatorSpec, func: Callable[..., Any], batches: Iterator[Any]
) -> Iterator[Any]:
    """Run `func` over a partition's pandas batches in a worker."""
    task = open_task(spec, None)
    if task is None:
        return iter(func(batches))

    def noted() -> Iterator[Any]:
        for batch in batches:
            columns = [image(batch.iloc[:, at]) for at in range(batch.shape[1])]
            task.input(columns or [pa.nulls(len(batch))])
            yield batch

    return ServiceRunner(task, func).pipelined(iter(func(noted())))


def run_elements(
    spec: OperatorSpec, func: Callable[..., Any], of: OfRdd, elements: Iterator[Any]
) -> Iterator[Any]:
    """Run `func` over a partition of an RDD in a worker."""
    task = open_task(spec, None, of_rdd=of)
    if task is None:
        return iter(func(elements))

    def noted() -> Iterator[Any]:
        while chunk := list(itertools.islice(elements, RDD_CHUNK)):
            task.input_bytes(len(chunk), pickle.dumps(chunk, protocol=5))
            yield from chunk

    def chunks() -> Iterator[list[Any]]:
        results = iter(func(noted()))
        while chunk := list(itertools.islice(results, RDD_CHUNK)):
            yield chunk

    return itertools.chain.from_iterable(ServiceRunner(task, func).pipelined(chunks()))
