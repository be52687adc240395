"""``foreachBatch`` functions as causal tasks of the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clonos import _core
from clonos._code import code_fingerprint
from clonos._keys import TaskKeys
from clonos._services import Scope, current
from clonos._uses import Use
from clonos._worker import connection
from clonos._worker.place import BATCH_SETTING, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BatchFunction = Callable[["DataFrame", int], None]
# Partitions of Spark count from 0; the driver's own task stands beyond any of them.
_DRIVER_PARTITION = 2**32 - 1


@contextlib.contextmanager
def batch_setting(spark: SparkSession, tag: str) -> Iterator[None]:
    """Have all frames of a stream's own session belong to a batch, whichever thread asks.

    Spark says by properties of a thread which batch a job is of, and threads that Python starts do
    not have them. Each stream has a session of its own, though, in which its batches come one after
    the other, and Spark hands a session's settings to the tasks of its queries.
    """
    spark.conf.set(BATCH_SETTING, tag)
    try:
        yield
    finally:
        spark.conf.unset(BATCH_SETTING)


@dataclass(frozen=True)
class CausalBatch:
    """A ``foreachBatch`` function, and what tells it from another one.

    It is described where it is written: it may run in another process.
    """

    fn: BatchFunction
    code: int
    label: str

    @classmethod
    def of(cls, fn: BatchFunction) -> CausalBatch:
        """Describe a function."""
        return cls(fn, code_fingerprint(fn), getattr(fn, "__qualname__", type(fn).__name__))

    def run(
        self,
        config: _core.SessionConfig,
        check: Callable[[str, int], None],
        of: tuple[str, int],
        batch: DataFrame,
        number: int,
    ) -> None:
        """Run it in a causal scope: each service outcome is stable before the function sees it.

        Parameters
        ----------
        config : _core.SessionConfig
            Of the session, on the driver's host.
        check : callable
            Refuses a query's epoch of which tasks have used different logs.
        of : tuple of str and int
            The query, and which attempt this is among all of the session's.
        batch, number
            What Spark hands to such a function.
        """
        query, attempt = of
        place = Place(query, number, _DRIVER_PARTITION, stage=0, attempt=attempt)
        client = _core.Client.connect(config, config.driver_socket)
        arguments: dict[str, Any] = connection.task_arguments(
            config, place, Use(f"foreach_batch:{self.label}", self.code, 0, "")
        )
        task = _core.ServiceTask.open(
            client,
            config,
            **arguments,
            label=self.label,
            keyed=False,
            allow_code_change=True,
            count_occurrences=False,
        )

        def publish() -> None:
            task.settle(task.publish())

        scope = Scope(task, TaskKeys(task), publish, self.fn)
        token = current.set(scope)
        try:
            self.fn(batch, number)
            scope.check()
            # The seed of clonos.random may be the only thing not published yet.
            publish()
            # Before Spark commits the batch: afterwards nothing could be refused.
            check(query, number)
        finally:
            current.reset(token)
            task.close()
