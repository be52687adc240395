"""Functions that Spark calls piece by piece: once for a group of rows, or a call of a UDTF.

Spark hands such a function one piece after the other and never says which is the last. So what a
piece led to is stable before its result is handed back, and the log is given back when Spark lets
go of the function. A piece counts as one row of the log, whatever is in it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from clonos import _core
from clonos._keys import CallKeys, TaskKeys, other_keys
from clonos._outcomes import dumps
from clonos._services import Scope, current, record_nothing
from clonos._worker import connection
from clonos._worker.lost import check_lost
from clonos._worker.place import current_place
from clonos._worker.udf import UdfSpec, open_arguments
from clonos.errors import ClonosError, ConfigError

T = TypeVar("T")


class Pieces:
    """Runs a function's pieces in one attempt of a task; the log is opened by the first of them.

    Parameters
    ----------
    spec : UdfSpec
        The operator.
    """

    def __init__(self, spec: UdfSpec) -> None:
        self.spec = spec
        self._task: _core.ResultTask | _core.ServiceTask | None = None
        self._key: Callable[..., str]
        self._opened = False
        self._let_go: Callable[[], Any] | None = None
        self._opening = threading.Lock()
        # Held by the thread that works on a piece.
        self._alone = threading.Lock()
        self._thread: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["spec"])  # type: ignore[misc]

    def run(self, columns: list[pa.Array], work: Callable[[], T]) -> T:
        """Outcome of `work`, or the one that is recorded for its piece.

        Parameters
        ----------
        columns : list of pyarrow.Array
            One row that tells this piece from others.
        work : callable
            Calls the user's function.

        Returns
        -------
        object
            What `work` returned, now or when it was recorded.

        Raises
        ------
        ReplayDivergence
            If the function changed since the log was recorded.
        ConfigError
            If another thread is at work on a piece: which came first is nobody's to say.
        """
        if self.under_way:
            return work()
        if not self._alone.acquire(blocking=False):
            message = f"{self.spec.uid} is called in two threads at once: call it in one"
            raise ConfigError(message, "CONFIG")
        try:
            self._thread = threading.get_ident()
            task = self._opened_task()
            if isinstance(task, _core.ResultTask):
                return self._recorded(task, columns, work)
            if isinstance(task, _core.ServiceTask):
                return self._with_services(task, columns, work)
            return within(Scope(None), work)
        finally:
            self._thread = None
            self._alone.release()

    @property
    def under_way(self) -> bool:
        """Whether this is called within a piece, of which all that its function calls is part."""
        return self._thread == threading.get_ident()

    @property
    def is_recorded(self) -> bool:
        """Whether anything is recorded: there is a session, and its guarantee asks for it."""
        return self._opened_task() is not None

    @property
    def replays_outcomes(self) -> bool:
        """Whether `run` may answer without calling the function."""
        return isinstance(self._opened_task(), _core.ResultTask)

    def _opened_task(self) -> _core.ResultTask | _core.ServiceTask | None:
        with self._opening:
            if not self._opened:
                self._open()
                self._opened = True
        return self._task

    def _open(self) -> None:
        if self.spec.config is None:
            record_nothing()
            return
        config = _core.SessionConfig.from_bytes(self.spec.config)
        place = current_place(config.app_id)
        if place is None or config.guarantee != "exactly_once":
            record_nothing()
            return
        arguments = open_arguments(self.spec, config, place)
        task: _core.ResultTask | _core.ServiceTask
        if self.spec.record == "services":
            task = connection.open_task(_core.ServiceTask, config, arguments)
        else:
            task = connection.open_task(_core.ResultTask, config, arguments)
            self._key = other_keys(task.key, self.spec.uid) if task.relaid else task.key
        check_lost(task, config, self.spec.uid, place)
        self._task = task
        # There is no end of input to wait for. What is recorded and did not come again is no error
        # here: a group that a failed fetch cut short was recorded as another group.
        self._let_go = weakref.finalize(self, task.close)

    def close(self) -> None:
        """Give the log back, where Spark says that the last piece is done."""
        if self._let_go is not None:
            self._let_go()

    def _recorded(
        self, task: _core.ResultTask, columns: list[pa.Array], work: Callable[[], T]
    ) -> T:
        plan = task.offer(columns)
        if not plan.live_count:
            recorded = task.complete(plan, None)
            # A piece found in the log of another partition is copied to this one.
            self._settle(task)
            outcome: T = pickle.loads(recorded[0].as_py())
            return outcome
        try:
            scope = Scope(None, CallKeys(lambda: 0, functools.partial(self._key, plan)))
            outcome = within(scope, work)
            data = outcome_bytes(outcome)
        except Exception:
            # Whoever calls the function may go on with the next piece.
            task.abandon(plan)
            raise
        task.complete(plan, pa.array([data], pa.large_binary()))
        self._settle(task)
        return outcome

    def _with_services(
        self, task: _core.ServiceTask, columns: list[pa.Array], work: Callable[[], T]
    ) -> T:
        task.begin_batch(columns)
        task.begin_row(0)
        after = (lambda: self._settle(task)) if self.spec.flush == "call" else None
        scope = Scope(task, TaskKeys(task), after, work)
        try:
            outcome = within(scope, work)
            scope.check()
        except Exception:
            # What was taken before it is kept.
            with contextlib.suppress(ClonosError):
                task.settle(task.publish_answers())
            raise
        task.end_row()
        self._settle(task)
        return outcome

    @staticmethod
    def _settle(task: _core.ResultTask | _core.ServiceTask) -> None:
        task.settle(task.publish())


def within(scope: Scope, work: Callable[[], T]) -> T:
    """Return what `work` returns when it runs in `scope`."""
    token = current.set(scope)
    try:
        return work()
    finally:
        current.reset(token)


class _OutcomePickler(pickle.Pickler):
    """Pickles Arrow data as streams: a slice's own pickle would hold all that it is a slice of."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, pa.Table):
            return read_table, (stream_of(value.schema, value.to_batches()),)
        if isinstance(value, pa.RecordBatch):
            return read_batch, (stream_of(value.schema, [value]),)
        return NotImplemented


def outcome_bytes(outcome: object) -> bytes:
    """Return an outcome as it is recorded.

    Arrow data as Arrow streams; all else, pandas frames among it, as Python's pickle, because a
    frame can hold what Arrow cannot and must come back as it was.
    """
    buffer = io.BytesIO()
    try:
        _OutcomePickler(buffer, protocol=5).dump(outcome)
    except Exception:  # classes of the user's program are what only cloudpickle can handle
        return dumps(outcome)
    return buffer.getvalue()


def stream_of(schema: pa.Schema, batches: list[pa.RecordBatch]) -> bytes:
    """Return the Arrow stream of `batches`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_table(data: bytes) -> pa.Table:
    """Return the table in an Arrow stream."""
    return pa.ipc.open_stream(data).read_all()


def read_batch(data: bytes) -> pa.RecordBatch:
    """Return the first batch of an Arrow stream."""
    return pa.ipc.open_stream(data).read_next_batch()


def listed(result: Any) -> Any:
    """Read an iterator to its end, where the function yields; anything else as it is."""
    return list(result) if isinstance(result, Iterator) else result
