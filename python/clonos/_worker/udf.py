"""The body of a causal UDF: what Spark pickles, and what runs in its Python workers."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clonos import _core
from clonos._calls import Calls
from clonos._uses import Use
from clonos._worker import connection
from clonos._worker.libraries import LIBRARIES, Libraries
from clonos._worker.place import Place, current_place
from clonos._worker.task_conf import DEFAULTS, TaskConf
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from clonos._worker.user_function import UserFunction

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

    `arguments` counts the columns passed to the function, the last of them under the names in
    `keywords`; columns after them identify the row: those of `row_key`, if it is `keyed`, else a
    mark that the optimizer may add. `types` are Spark's, as JSON, of arguments that
    Arrow does not tell all of; `return_type` is Spark's too, ``None`` where Spark keeps it itself.
    What only draws (`draws`) has its results recorded where rows may trade places, or have a key.
    `pickled` says which coercions a row function's results get, `conf` is the session's.
    `config` is ``None`` where nothing is recorded.
    """

    use: Use
    kind: str
    return_type: Any
    record: str
    flush: str
    concurrency: int
    arguments: int
    keyed: bool
    allow_code_change: bool
    count_occurrences: bool
    label: str
    calls: Calls | None
    config: bytes | None
    per: str = "row"
    keywords: tuple[str, ...] = ()
    types: tuple[str | None, ...] = ()
    pickled: bool = False
    draws: bool = False
    conf: TaskConf = DEFAULTS

    @property
    def marks_at(self) -> int | None:
        """Where the optimizer's mark of a row is among its columns, if there is one."""
        # Where nothing is passed there is a column to count rows by.
        return None if self.keyed else max(self.arguments, 1)

    @property
    def uid(self) -> str:
        """Name of the operator."""
        return self.use.operator


def make_body(spec: UdfSpec, fn: Callable[..., Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the iterator function that Spark runs in place of `fn`, under its name."""
    name, owner = frame_of(fn)

    def frame(batches: Iterator[Any]) -> Iterator[Any]:
        from clonos._worker import udf

        if owner is not None:
            cls = owner  # noqa: F841 - Spark's log of workers looks for a variable of this name
        yield from udf.run(spec, fn, batches)

    # Spark's log of workers says by its code's name what was called.
    frame.__code__ = frame.__code__.replace(co_name=name)

    def body(batches: Iterator[Any], *, _libraries: Libraries = LIBRARIES) -> Iterator[Any]:
        from clonos import _core
        from clonos._worker import tracebacks

        return _core.Outputs(frame(batches), tracebacks.of_user)

    body.__name__ = getattr(fn, "__name__", type(fn).__name__)
    body.__qualname__ = body.__name__
    body.__doc__ = fn.__doc__
    return body


def frame_of(fn: Callable[..., Any]) -> tuple[str, type | None]:
    """Name of the code that a call of `fn` runs first, and the class it belongs to, if any."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, types.MethodType):
        owner = fn.__self__
        return fn.__func__.__name__, owner if isinstance(owner, type) else type(owner)
    if hasattr(fn, "__name__"):
        return fn.__name__, None
    return "__call__", type(fn)


def by_name(fn: Callable[..., Any], spec: UdfSpec) -> Callable[..., Any]:
    """Return `fn` as a function of columns in order, the last of which it is given by name."""
    names = spec.keywords
    if not names:
        return fn
    first = spec.arguments - len(names)
    return lambda *row: fn(*row[:first], **dict(zip(names, row[first:], strict=True)))


def run(spec: UdfSpec, fn: Callable[..., Any], batches: Iterator[Any]) -> Iterator[Any]:
    """Run one attempt of a causal UDF over the batches of a partition."""
    from clonos._worker.calls import prepared
    from clonos._worker.user_function import UserFunction

    config = None if spec.config is None else _core.SessionConfig.from_bytes(spec.config)
    # Its client is given back when the last batch has left, or the task has failed.
    with prepared(spec.calls, fn, spec.uid, config, asynchronous=spec.kind == ASYNC) as made:
        yield from _recorded(UserFunction(spec, *made), batches, config)


def _recorded(
    function: UserFunction, batches: Iterator[Any], config: _core.SessionConfig | None
) -> Iterator[Any]:
    spec, columns = function.spec, function.columns(batches)
    place = None if config is None else current_place(config.app_id)
    if config is None or config.guarantee != "exactly_once" or place is None:
        return _plain(function, columns)
    # The log is opened when there is input: of two uses that feed each other in one task, the one
    # that is first in the data is then always the first to ask.
    first = list(itertools.islice(columns, 1))
    columns = itertools.chain(first, columns)
    if first and not first[0]:
        # Of a name in SQL alone: a column has one to count rows by.
        message = f"{spec.uid} is called with nothing, and has one answer for equal arguments"
        raise ConfigError(message, "CONFIG")
    is_marked = bool(first) and len(first[0]) > (spec.marks_at or len(first[0]))
    if spec.record == "services" and not (spec.draws and (spec.keyed or is_marked)):
        return _services(function, columns, config, place)
    if spec.per == "value":
        return _values(function, columns, config, place)
    return _results(function, columns, config, place)


def open_arguments(spec: UdfSpec, config: _core.SessionConfig, place: Place) -> dict[str, Any]:
    """Arguments that open the log of one use of a causal function."""
    return connection.task_arguments(config, place, spec.use) | {
        "label": spec.label,
        "keyed": spec.keyed,
        "allow_code_change": spec.allow_code_change,
        "count_occurrences": spec.count_occurrences,
    }


def _results(
    function: UserFunction, columns: Iterator[Any], config: _core.SessionConfig, place: Place
) -> Iterator[Any]:
    from clonos._keys import other_keys
    from clonos._worker.lost import check_lost
    from clonos._worker.result_runner import ResultRunner

    spec = function.spec
    task = connection.open_task(_core.ResultTask, config, open_arguments(spec, config, place))
    check_lost(task, config, spec.uid, place)
    at_once = spec.concurrency == 1
    # Of functions of many rows a key is of all that are asked together, however they are cut.
    tells_rows = spec.keyed and spec.kind in (ROW, ASYNC)
    key = other_keys(task.key, spec.uid) if task.relaid and not tells_rows else None
    runner = ResultRunner(task, spec.arguments, spec.marks_at, spec.flush, at_once, key=key)
    if spec.kind in (ARROW_ITER, PANDAS_ITER):
        return runner.run_iterator(columns, function.started, function.element)
    return runner.run(columns, function.kind())


def _values(
    function: UserFunction, columns: Iterator[Any], config: _core.SessionConfig, place: Place
) -> Iterator[Any]:
    from clonos._worker.value_runner import TAKEN_MAX, ValueRunner

    spec = function.spec
    # The same function with results of another type, or called in another way, is another. Spark's
    # settings decide on both.
    called = (spec.kind, spec.return_type, spec.keywords, spec.types, spec.pickled)
    shape = repr((*called, function.conf))
    vectorised = spec.kind in (ARROW, PANDAS)
    arguments = open_arguments(spec, config, place) | {"shape": shape, "in_parts": not vectorised}
    task = _core.ValueTask.open(connection.client(config), **arguments)
    if vectorised:
        return ValueRunner(task, function.kind(), TAKEN_MAX).run(columns)
    taken_max = spec.concurrency if spec.flush == "call" else TAKEN_MAX
    return ValueRunner(task, function.kind(), spec.concurrency, taken_max).run(columns)


def _services(
    function: UserFunction, columns: Iterator[Any], config: _core.SessionConfig, place: Place
) -> Iterator[Any]:
    from clonos._worker.lost import check_lost
    from clonos._worker.service_runner import ServiceRunner

    spec = function.spec
    arguments = open_arguments(spec, config, place) | {"draws": spec.draws}
    task = connection.open_task(_core.ServiceTask, config, arguments)
    check_lost(task, config, spec.uid, place)
    runner = ServiceRunner(task, function.called, spec.flush)
    if spec.kind in (ARROW_ITER, PANDAS_ITER):
        return runner.run_iterator(columns, function.elements, spec.arguments)
    if spec.kind in (ARROW, PANDAS):
        return runner.run_batches(columns, function.whole)
    return runner.run_rows(columns, function.of_row(), function.row_codec(), spec.arguments)


def _plain(function: UserFunction, columns: Iterator[Any]) -> Iterator[Any]:
    """The function without any recording."""
    from clonos._services import record_nothing
    from clonos._worker import kinds

    record_nothing()
    spec = function.spec

    def key(_row: int | None, _call: int) -> str:
        import os

        return os.urandom(16).hex()

    columns = (batch[: spec.arguments] or batch[:1] for batch in columns)
    if spec.kind in (ARROW_ITER, PANDAS_ITER):
        yield from function.elements(kinds.one_or_tuple(batch) for batch in columns)
        return
    kind = function.kind()
    try:
        for batch in columns:
            yield kind.run(batch, key)
    finally:
        kind.close()
