"""Processors of Rows: ``transformWithState``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import attrgetter, eq
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from clonos._arrow_types import arrow_schema
from clonos._state.flavour import OUTPUT_ROWS, in_zone, rows_per_chunk
from clonos._state.garbage import collector_paused
from clonos._state.tuples import row_class
from clonos._worker.rows import to_pylist
from clonos._worker.task_conf import TaskConf

WINDOW = 8192
_FIELDS = attrgetter("__fields__")


class RowFlavour:
    """Rows in, Rows out.

    Parameters
    ----------
    output : StructType
        Schema of what the processor returns.
    conf : TaskConf
        Spark's settings.
    """

    def __init__(self, output: StructType, conf: TaskConf) -> None:
        self._conf = conf
        self._schema = arrow_schema(output)
        self._names = output.names
        # Structs within are taken by name, as those around them.
        self._nested = any(_has_struct(field.dataType) for field in output.fields)
        self._taken: list[Any] = []

    def keys(self, keys: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return the keys as a processor is given them with their rows."""
        with collector_paused():
            return tuples_of(keys, self._conf)

    def chunks(self, rows: pa.RecordBatch) -> RowChunks:
        """Return what makes Rows of these rows."""
        return RowChunks(rows, self._conf)

    def take(self, outputs: Iterable[Any]) -> bool:
        """Take all Rows of one key; whether it is time to hand them on."""
        self._taken.extend(outputs)
        return len(self._taken) >= OUTPUT_ROWS

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Hand on what was taken."""
        rows, self._taken = self._taken, []
        if rows:
            with collector_paused():
                batch = self._batch(rows)
            yield batch

    def _batch(self, rows: list[Any]) -> pa.RecordBatch:
        names = self._names
        if self._nested or not _all_have(names, rows):
            dicts = [row.asDict(True) for row in rows]
            return pa.RecordBatch.from_pylist(dicts, schema=self._schema)
        columns = zip(*rows, strict=True)
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class RowChunks:
    """Makes Rows of a batch, many at a time: those of most keys are in one window."""

    def __init__(self, rows: pa.RecordBatch, conf: TaskConf) -> None:
        self._rows = rows
        self._conf = conf
        self._row = row_class(rows.schema.names)
        self._most = min(WINDOW, rows_per_chunk(rows))
        self._begin = self._end = 0
        self._window: list[Any] = []

    def iterator(self, begin: int, end: int) -> Iterator[Any]:
        """The Rows from `begin` to `end`."""
        if end - begin > self._most:
            return self._pieces(begin, end)
        if not self._begin <= begin <= end <= self._end:
            self._begin = begin
            self._end = min(begin + self._most, len(self._rows))
            self._window = self._made(begin, self._end)
        return iter(self._window[begin - self._begin : end - self._begin])

    def _pieces(self, begin: int, end: int) -> Iterator[Any]:
        for at in range(begin, end, self._most):
            yield from self._made(at, min(at + self._most, end))

    def _made(self, begin: int, end: int) -> list[Any]:
        rows = self._rows.slice(begin, end - begin)
        with collector_paused():
            return list(map(tuple.__new__, repeat(self._row), tuples_of(rows, self._conf)))


def _all_have(names: list[str], rows: list[Any]) -> bool:
    """Whether all rows have just these fields, in order."""
    try:
        return all(map(eq, map(_FIELDS, rows), repeat(names)))
    except AttributeError:
        return False


def tuples_of(batch: pa.RecordBatch, conf: TaskConf) -> list[tuple[Any, ...]]:
    """Tuples of the values that ``as_py`` gives."""
    return list(zip(*(to_pylist(in_zone(column, conf)) for column in batch.columns), strict=True))


def _has_struct(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_struct(kind.elementType)
    if isinstance(kind, MapType):
        return _has_struct(kind.keyType) or _has_struct(kind.valueType)
    return isinstance(kind, StructType)
