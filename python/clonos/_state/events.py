"""Event time: rows that come too late, and rows that leave too late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkRuntimeError

from clonos._state.variables import TimeMode

if TYPE_CHECKING:
    from clonos import _core
    from clonos._state.program import Program

_END = 1


def without_late_rows(
    batches: Iterator[pa.RecordBatch], program: Program, task: _core.StateTask
) -> Iterator[pa.RecordBatch]:
    """Leave out rows of which the previous batch's watermark was past.

    Only in event time, as in Spark; rows without a time are never late.
    """
    event, mode = program.event_time, program.time_mode
    if event is None or mode is not TimeMode.EVENT_TIME or task.late_ms < 0:
        yield from batches
        return
    for batch in batches:
        times = batch.column(event.column)
        if event.is_window:
            times = pc.struct_field(times, _END)
        in_time = pc.fill_null(pc.greater(times, _instant(task.late_ms, times.type)), True)
        yield batch.filter(in_time)


def check_output(batch: pa.RecordBatch, program: Program, task: _core.StateTask) -> None:
    """Refuse output with an event time that the previous batch's watermark is past, as Spark does.

    Raises
    ------
    PySparkRuntimeError
        In Spark's words.
    """
    name = program.output_event_time
    if name is None or task.late_ms < 0:
        return
    times: Any = batch.column(batch.schema.get_field_index(name))
    if pa.types.is_struct(times.type):
        times = pc.struct_field(times, _END)
    late = pc.filter(times, pc.less_equal(times, _instant(task.late_ms, times.type)))
    if len(late):
        emitted = pc.min(late).cast(pa.int64()).as_py() // 1000
        message = (
            "[EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED] Previous node emitted a row with "
            f"eventTime={emitted} which is older than current_watermark_value={task.late_ms}\n"
            "This can lead to correctness issues in the stateful operators downstream in the "
            "execution pipeline.\nPlease correct the operator logic to emit rows after current "
            "global watermark value. SQLSTATE: 42815"
        )
        raise PySparkRuntimeError(message)


def _instant(milliseconds: int, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(milliseconds * 1000, pa.int64()).cast(pa.timestamp("us")).cast(kind)
