"""Runs a `BatchProcessor` over one partition of one epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from clonos import _core
from clonos._state.batch_processor import BatchProcessor, GroupedRows
from clonos._state.events import check_output, without_late_rows
from clonos._state.flavour import in_zone
from clonos._state.program import Program
from clonos._state.states import DELETE, PUT
from clonos._state.variables import TimeMode, arrow_schema
from clonos._worker.task_conf import current_conf
from clonos.errors import UnsupportedType

Batches = Iterator[pa.RecordBatch]
# Rows of output that leave together: each batch waits until what it follows from is stable.
OUTPUT_ROWS = 65_536
CONDITION = "UNSUPPORTED_TYPE"
# Place of the one variable there is.
_STATE = 0


class BatchRunner:
    """One task of a stateful operator in Arrow."""

    def __init__(self, program: Program, task: _core.StateTask) -> None:
        self._program = program
        self._task = task
        self._processor: BatchProcessor = program.processor
        self._conf = current_conf(program.conf)
        self._schema = arrow_schema(program.declared[program.variables[_STATE]].values)

    def run(self, batches: Batches) -> Batches:
        """Handle the rows of all keys; and commit."""
        gathered = without_late_rows(batches, self._program, self._task)
        if gathered:
            yield from self._data(gathered)
        self._task.commit()

    def _data(self, gathered: Sequence[pa.RecordBatch]) -> Batches:
        task, program = self._task, self._program
        rows, offsets, keys = task.group(gathered, list(program.keys))
        task.load()
        has_times = program.time_mode is not TimeMode.NONE
        grouped = GroupedRows(
            self._in_zone(rows.select(list(range(program.columns)))),
            pa.array(offsets, pa.int64()),
            *((task.now_ms, task.watermark_ms) if has_times else (-1, -1)),
        )
        there, state = self._stored(len(keys))
        made: Any = self._processor.handle_batch(self._in_zone(keys), grouped, state)
        if not isinstance(made, tuple) or len(made) != len(("output", "state")):
            message = (
                "handle_batch returns a pair, the rows of output and the state, and returned "
                f"{type(made).__name__}"
            )
            raise UnsupportedType(message, CONDITION)
        output, changed = made
        if changed is not state:
            self._write(there, as_declared("state", changed, self._schema, len(keys)))
        if output is None:
            return
        table = as_declared("output", output, arrow_schema(program.output))
        for batch in table.to_batches(OUTPUT_ROWS):
            check_output(batch, program, task)
            yield batch

    def _in_zone(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [in_zone(column, self._conf) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, batch.schema.names)

    def _stored(self, count: int) -> tuple[np.ndarray[Any, Any], pa.RecordBatch]:
        """Whether each key has state, and what it is: a row for each."""
        numbers, _, values = self._task.values(_STATE)
        columns = values.flatten()
        there = np.zeros(count, dtype=bool)
        there[np.asarray(numbers)] = True
        if not there.all():
            # A null takes a null.
            places = pa.array(np.cumsum(there) - 1, pa.int64(), mask=~there)
            columns = [column.take(places) for column in columns]
        columns = [in_zone(column, self._conf) for column in columns]
        return there, pa.RecordBatch.from_arrays(columns, self._schema.names)

    def _write(self, there: np.ndarray[Any, Any], state: pa.Table) -> None:
        columns = [column.combine_chunks() for column in state.columns]
        kept = np.zeros(len(there), dtype=bool)
        for column in columns:
            kept |= np.asarray(column.is_valid())
        written = kept | there
        keys = pa.array(np.flatnonzero(written), pa.int32())
        ops = pa.array(np.where(kept[written], PUT, DELETE), pa.uint8())
        values = pa.StructArray.from_arrays(columns, fields=list(self._schema))
        if not kept.all():
            values = values.filter(pa.array(kept))
        self._task.write(_STATE, keys, ops, None, values)


def as_declared(
    what: str, found: pa.RecordBatch | pa.Table, schema: pa.Schema, rows: int | None = None
) -> pa.Table:
    """Take what `handle_batch` returned by name, with the declared types.

    Raises
    ------
    UnsupportedType
        If it is no Arrow, has other columns or another number of rows, or a value does not fit;
        the message names it.
    """

    def wrong(reason: str) -> UnsupportedType:
        return UnsupportedType(f"the {what} that handle_batch returned {reason}", CONDITION)

    if not isinstance(found, pa.RecordBatch | pa.Table):
        raise wrong(f"is no pyarrow.RecordBatch or Table, but {type(found).__name__}")
    if sorted(found.schema.names) != sorted(schema.names):
        raise wrong(f"has the columns {found.schema.names}, and declared are {schema.names}")
    if rows is not None and len(found) != rows:
        raise wrong(f"has {len(found)} rows, and there are {rows} keys: it needs one for each")
    columns = []
    # By place where the names are in order: two columns may have one name.
    places = range(len(schema)) if found.schema.names == schema.names else schema.names
    for place, field in zip(places, schema, strict=True):
        column: Any = found.column(place)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                reason = f"has {field.name!r} as {column.type}, which is declared {field.type}"
                raise wrong(f"{reason}: {error}") from error
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)
