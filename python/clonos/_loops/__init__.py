"""``clonos-loop``: a sink and a source on one log, so that rows come back in a later epoch.

::

    epoch N ─ write ─▶ staging ─ commit ─▶ epochs/N ─ offset ─▶ batch N+1 or later ─ read ─▶ rows

What epoch N writes is shown when it commits, once, by the fence of the sinks. What a batch reads is
in Spark's log of offsets before it begins. So a row that goes round is in one epoch, and then in
one later one, whatever is run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clonos._loops.folder import nullable
from clonos._loops.sink import LoopBatchWriter, LoopTarget
from clonos._sinks.writers import Sink
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from clonos._loops.source import LoopOptions, LoopReader

# As many micro-batches as Spark keeps unless it is told otherwise.
RETAINED = 100


class Loop(Sink):
    """A sink and a source on one log: rows written in an epoch come back in a later one, each once.

    The usual query reads its own loop beside its real source, and writes to it in
    ``foreachBatch``, or with ``writeStream`` if that is its only sink. Another query may read it
    instead. A loop has one query that writes and one that reads.

    Options of the source:

    ====================== =========== =======================================================
    option                 default     meaning
    ====================== =========== =======================================================
    ``path``                           the folder, on a file system that driver and executors
                                       have mounted
    ``delay``              none        ``"10 seconds"``: for how long rows do not come back
    ``maxRecordsPerBatch`` no limit    rows of one micro-batch; whole epochs, at least one
    ``numPartitions``      see right   tasks of one micro-batch at most; unless given, one for each
                                       20,000 rows, and at most one for each processor of the
                                       driver
    ``untilEmpty``         false       whether ``Trigger.AvailableNow`` goes on with rows that it
                                       wrote itself, until none are left
    ====================== =========== =======================================================

    The sink has ``path``, and in ``foreachBatch`` may be given ``epoch``, the number of the batch.

    Examples
    --------
    >>> again = spark.readStream.format("clonos-loop").schema(schema).load(path)  # doctest: +SKIP
    >>> tried = orders.unionByName(again).select(attempt("order", "tries"))  # doctest: +SKIP
    >>> def write(batch, number):
    ...     failed = batch.where("error is not null")
    ...     failed.write.format("clonos-loop").mode("append").save(path)
    """

    sink = "clonos-loop"
    target = LoopTarget
    #: For how many batches what they read stays.
    retained: ClassVar[int] = RETAINED

    def schema(self) -> StructType:
        """Return the columns, which the loop tells once it was written to.

        Raises
        ------
        ConfigError
            If nobody has written to it.
        """
        from pyspark.sql.types import StructType

        folder = self._options().folder
        found = folder.described()
        if found is None:
            message = (
                f"the loop {str(folder.root)!r} was not written to yet, so its columns are not "
                "known: say them with spark.readStream.format('clonos-loop').schema(…)"
            )
            raise ConfigError(message, "CONFIG")
        return StructType.fromJson(nullable(found.schema))

    def streamReader(self, schema: StructType) -> LoopReader:
        """Return what Spark reads through."""
        from clonos._loops.source import LoopReader

        return LoopReader(self._options(), schema, self.retained)

    def writer(self, schema: StructType, overwrite: bool) -> LoopBatchWriter:
        """Return the writer of what ``foreachBatch`` gives."""
        options = {name.lower(): value for name, value in self.options.items()}
        return LoopBatchWriter(self._target(schema, overwrite), options.get("epoch"))

    def _options(self) -> LoopOptions:
        from pyspark.sql.datasource import CaseInsensitiveDict

        from clonos._loops.source import LoopOptions

        return LoopOptions.read(CaseInsensitiveDict(self.options))


def loop_of(retained: int) -> type[Loop]:
    """Return the data source with what a session says.

    It is a new class, so that it travels to Spark's planner by value.
    """
    members = {"retained": retained, "__doc__": Loop.__doc__}
    return type(Loop.__name__, (Loop,), members)


__all__ = ["Loop", "loop_of"]
