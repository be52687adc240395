"""``foreachBatch`` functions as causal tasks of the driver."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clonos import _core
from clonos._code import code_fingerprint
from clonos._keys import TaskKeys
from clonos._services import Scope, current
from clonos._uses import Use
from clonos._worker import connection
from clonos._worker.place import QUERY_PROPERTY, Place, application_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
# Partitions of Spark count from 0; the driver's own task stands beyond any of them.
DRIVER_PARTITION = 2**32 - 1
# Numbers the runs of batch functions in this process, as Spark numbers attempts of tasks.
_attempts = itertools.count(1)


def causal_batch_function(
    config: _core.SessionConfig,
    check: Callable[[str, int], None],
    fn: Callable[[DataFrame, int], None],
) -> Callable[[DataFrame, int], None]:
    """Return `fn` in a causal scope; each service outcome is stable before `fn` sees it."""
    code = code_fingerprint(fn)
    label = getattr(fn, "__qualname__", type(fn).__name__)

    @functools.wraps(fn)
    def causal_batch(batch: DataFrame, number: int) -> None:
        context = batch.sparkSession.sparkContext
        query = context.getLocalProperty(QUERY_PROPERTY) or application_query(config.app_id)
        place = Place(query, number, DRIVER_PARTITION, stage=0, attempt=next(_attempts))
        client = _core.Client.connect(config, config.driver_socket)
        arguments: dict[str, Any] = connection.task_arguments(
            config, place, Use(f"foreach_batch:{label}", code, 0, "")
        )
        task = _core.ServiceTask.open(
            client,
            config,
            **arguments,
            label=label,
            keyed=False,
            allow_code_change=True,
            count_occurrences=False,
        )

        def publish() -> None:
            task.settle(task.publish())

        scope = Scope(task, TaskKeys(task), publish, fn)
        token = current.set(scope)
        try:
            fn(batch, number)
            scope.check()
            # The seed of clonos.random may be the only thing not published yet.
            publish()
            # Before Spark commits the batch: afterwards nothing could be refused.
            check(query, number)
        finally:
            current.reset(token)
            task.close()

    return causal_batch
