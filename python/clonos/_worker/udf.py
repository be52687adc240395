"""The body of a causal UDF: what Spark pickles, and what runs in its Python workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from clonos import _core
from clonos._code import PYTHON_VERSION
from clonos._worker import connection
from clonos._worker.place import Place, current_place

ROW, ASYNC, ARROW, ARROW_ITER, PANDAS, PANDAS_ITER = (
    "row",
    "async",
    "arrow",
    "arrow_iter",
    "pandas",
    "pandas_iter",
)


@dataclass(frozen=True, slots=True)
class UdfSpec:
    """All that a worker must know of one use of a causal function; travels with its pickle.

    `arguments` counts the columns passed to the function; columns after them identify the row.
    `return_type` is Spark's JSON. `config` is ``None`` where nothing is recorded.
    """

    uid: str
    kind: str
    return_type: str
    record: str
    flush: str
    concurrency: int
    arguments: int
    keyed: bool
    code: int
    allow_code_change: bool
    count_occurrences: bool
    label: str
    config: bytes | None


def make_body(spec: UdfSpec, fn: Callable[..., Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the iterator function that Spark runs in place of `fn`, under its name."""

    def body(batches: Iterator[Any]) -> Iterator[Any]:
        from clonos._worker import udf

        return udf.run(spec, fn, batches)

    body.__name__ = getattr(fn, "__name__", type(fn).__name__)
    body.__qualname__ = body.__name__
    body.__doc__ = fn.__doc__
    return body


def run(spec: UdfSpec, fn: Callable[..., Any], batches: Iterator[Any]) -> Iterator[Any]:
    """Run one attempt of a causal UDF over the batches of a partition."""
    columns = (batch if isinstance(batch, tuple) else (batch,) for batch in batches)
    if spec.config is None:
        return _plain(spec, fn, columns)
    config = _core.SessionConfig.from_bytes(spec.config)
    place = current_place(config.app_id)
    if config.guarantee != "exactly_once" or place is None:
        return _plain(spec, fn, columns)
    if spec.record == "services":
        return _services(spec, fn, columns, config, place)
    return _results(spec, fn, columns, config, place)


def open_arguments(spec: UdfSpec, config: _core.SessionConfig, place: Place) -> dict[str, Any]:
    """Arguments that open the log of one use of a causal function."""
    return connection.task_arguments(config, place, spec.uid) | {
        "code": spec.code,
        "python": PYTHON_VERSION,
        "label": spec.label,
        "keyed": spec.keyed,
        "allow_code_change": spec.allow_code_change,
        "count_occurrences": spec.count_occurrences,
    }


def _results(
    spec: UdfSpec,
    fn: Callable[..., Any],
    columns: Iterator[Any],
    config: _core.SessionConfig,
    place: Place,
) -> Iterator[Any]:
    from clonos._worker import kinds
    from clonos._worker.lost import check_lost
    from clonos._worker.result_runner import ResultRunner

    task = connection.open_task(_core.ResultTask, config, open_arguments(spec, config, place))
    check_lost(task.lost, config, spec.uid, place)
    call_rows = 0 if spec.flush == "batch" else spec.concurrency
    runner = ResultRunner(task, spec.arguments, call_rows)
    pandas = spec.kind in (PANDAS, PANDAS_ITER)
    if pandas:
        columns = ([kinds.PandasColumn(series) for series in batch] for batch in columns)
    if spec.kind in (ARROW_ITER, PANDAS_ITER):
        arrow_type = _arrow_type(spec)

        def shape(value: Any) -> Any:
            if pandas:
                return kinds.pandas_to_arrow(value, arrow_type)
            return kinds.conform(value, arrow_type, len(value))

        outputs = runner.run_iterator(columns, fn, shape)
    else:
        outputs = runner.run(columns, _kind(spec, fn))
    return map(kinds.arrow_to_pandas, outputs) if pandas else outputs


def _services(
    spec: UdfSpec,
    fn: Callable[..., Any],
    columns: Iterator[Any],
    config: _core.SessionConfig,
    place: Place,
) -> Iterator[Any]:
    from clonos._worker import kinds
    from clonos._worker.lost import check_lost
    from clonos._worker.service_runner import ServiceRunner

    task = connection.open_task(_core.ServiceTask, config, open_arguments(spec, config, place))
    check_lost(task.lost, config, spec.uid, place)
    runner = ServiceRunner(task, spec.flush == "call")
    if spec.kind in (PANDAS, PANDAS_ITER):
        columns = ([kinds.PandasColumn(series) for series in batch] for batch in columns)
    if spec.kind in (ARROW_ITER, PANDAS_ITER):
        return runner.run_iterator(columns, fn)
    if spec.kind in (ARROW, PANDAS):
        return runner.run_batches(columns, lambda values: fn(*values[: spec.arguments]))
    if spec.kind == ASYNC:
        return runner.run_rows(columns, _sequential(fn), _return_type(spec), spec.arguments)
    return runner.run_rows(columns, fn, _return_type(spec), spec.arguments)


def _plain(spec: UdfSpec, fn: Callable[..., Any], columns: Iterator[Any]) -> Iterator[Any]:
    """The function without any recording."""
    from clonos._services import record_nothing
    from clonos._worker import kinds

    record_nothing()

    def key(_row: int) -> str:
        import os

        return os.urandom(16).hex()

    columns = (batch[: spec.arguments] or batch[:1] for batch in columns)
    if spec.kind in (ARROW_ITER, PANDAS_ITER):
        yield from fn(kinds.one_or_tuple(batch) for batch in columns)
    elif spec.kind in (ARROW, PANDAS):
        for batch in columns:
            yield fn(*batch)
    else:
        kind = _kind(spec, fn)
        try:
            for batch in columns:
                yield kind.run(batch, key)
        finally:
            kind.close()


def _kind(spec: UdfSpec, fn: Callable[..., Any]) -> Any:
    from clonos._worker import kinds

    if spec.kind == ARROW:
        return kinds.ArrowKind(fn, _arrow_type(spec))
    if spec.kind == PANDAS:
        return kinds.PandasKind(fn, _arrow_type(spec))
    if spec.kind == ASYNC:
        return kinds.AsyncKind(fn, _return_type(spec), spec.concurrency)
    if spec.arguments == 0:
        return kinds.NoArgumentKind(fn, _return_type(spec))
    return kinds.RowKind(fn, _return_type(spec))


def _return_type(spec: UdfSpec) -> Any:
    import json

    from pyspark.sql.types import _parse_datatype_json_value

    return _parse_datatype_json_value(json.loads(spec.return_type))


def _arrow_type(spec: UdfSpec) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(_return_type(spec), timezone="UTC")


def _sequential(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A coroutine function as a plain one: its services must be asked in one order."""
    import asyncio

    runner = asyncio.Runner()
    return lambda *row: runner.run(fn(*row))
