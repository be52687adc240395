"""``foreachBatch`` functions whose threads are of their batch, however they were started."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from clonos._operators.foreach_batch import BatchFunction, batch_setting
from clonos._unrecorded import batch_function
from clonos._worker.place import EXECUTION_PROPERTY, QUERY_PROPERTY, ROOT_PROPERTY, batch_tag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def in_any_thread(fn: BatchFunction) -> BatchFunction:
    """Return a function whose threads do what they do in the batch that it is called with."""

    @functools.wraps(fn)
    def of_batch(batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        get = spark.sparkContext.getLocalProperty
        query, execution = get(QUERY_PROPERTY), get(ROOT_PROPERTY) or get(EXECUTION_PROPERTY)
        if query and execution:
            tag = batch_tag(query, number, int(execution))
            with batch_setting(spark, tag), batch_function():
                fn(batch, number)
        else:
            # Somebody calls it who is not Spark.
            fn(batch, number)

    return of_batch
