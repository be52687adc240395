"""Runs a processor over one partition of one epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo

from clonos import _core
from clonos._arrow_types import spark_schema
from clonos._state.batch_run import BatchRunner
from clonos._state.events import check_output, without_late_rows
from clonos._state.flavour import Flavour
from clonos._state.frame_flavour import FrameFlavour
from clonos._state.handle import CLOSED, DATA_PROCESSED, INITIALIZED, TIMER_PROCESSED, TaskHandle
from clonos._state.opening import gather
from clonos._state.parted import Grouped, split
from clonos._state.program import Program
from clonos._state.row_flavour import RowFlavour
from clonos._state.stored import NO_KEY
from clonos._state.tuples import TupleCodec, row_factory
from clonos._state.variables import TimeMode
from clonos._worker.task_conf import current_conf

Batches = Iterator[pa.RecordBatch]


def run(program: Program, task: _core.StateTask, batches: Batches) -> Batches:
    """Handle initial state and rows of all keys, then the timers that are due; and commit.

    The batches of output come in an order that is the same whenever the epoch's input, its state
    and what the processor was told by the services are.
    """
    runner = BatchRunner if program.flavour == "arrow" else Runner
    return runner(program, task).run(batches)


class Runner:
    """One task of a stateful operator."""

    def __init__(self, program: Program, task: _core.StateTask) -> None:
        self._program = program
        self._task = task
        self._processor = program.processor
        self._handle = TaskHandle(program.time_mode, program.declared, program.variables, task)
        conf = current_conf(program.conf)
        self._flavour: Flavour = (
            RowFlavour(program.output, conf)
            if program.flavour == "row"
            else FrameFlavour(program.output, conf)
        )

    def run(self, batches: Batches) -> Batches:
        """See `run`."""
        handle, processor = self._handle, self._processor
        processor.init(handle)
        handle.state = INITIALIZED
        for outputs in (self._data(batches), self._timers()):
            for batch in outputs:
                check_output(batch, self._program, self._task)
                yield batch
        handle.state = TIMER_PROCESSED
        handle.cursor.key = NO_KEY
        processor.close()
        handle.state = CLOSED
        handle.flush()
        self._task.commit()

    # -- rows ------------------------------------------------------------------------------------

    def _data(self, batches: Batches) -> Batches:
        program, task = self._program, self._task
        rows = gather(program, task, without_late_rows(batches, program, task))
        # Keys come in the order of their hash, however many there are at a time.
        while some := rows.take():
            yield from self._rows(some)
        yield from self._flavour.batches()

    def _rows(self, batches: list[pa.RecordBatch]) -> Batches:
        """Handle all rows of the keys that come next."""
        program, task, cursor = self._program, self._task, self._handle.cursor
        rows, offsets, keys = task.group(batches, list(program.keys))
        task.load()
        first = cursor.loaded
        cursor.loaded += len(keys)
        data, initial = split(Grouped(rows, offsets), program)
        flavour, timer_values = self._flavour, self._handle.timer_values
        key_tuples = flavour.keys(keys)
        if initial is not None and task.version is None:
            starting = flavour.chunks(initial.rows)
        else:
            initial = None
        chunks = flavour.chunks(data.rows)
        handle_rows = self._processor.handleInputRows
        for number, key in enumerate(key_tuples):
            cursor.key = first + number
            if initial is not None:
                begin, end = initial.offsets[number], initial.offsets[number + 1]
                for state in starting.iterator(begin, end):
                    self._processor.handleInitialState(key, state, timer_values)
            begin, end = data.offsets[number], data.offsets[number + 1]
            if begin == end:
                continue
            if flavour.take(handle_rows(key, chunks.iterator(begin, end), timer_values)):
                yield from flavour.batches()

    # -- timers ----------------------------------------------------------------------------------

    def _timers(self) -> Batches:
        handle, task, flavour = self._handle, self._task, self._flavour
        handle.state = DATA_PROCESSED
        mode = self._program.time_mode
        if mode is TimeMode.NONE:
            return
        until = task.now_ms if mode is TimeMode.PROCESSING_TIME else task.watermark_ms
        timers, cursor = handle.timers(), handle.cursor
        due = timers.due(until)
        if not due:
            return
        keys = self._key_rows({number for _, number in due})
        handle_timer = self._processor.handleExpiredTimer
        for expiry, number in due:
            cursor.key = number
            is_full = flavour.take(
                handle_timer(
                    key=keys[number],
                    timerValues=handle.timer_values,
                    expiredTimerInfo=ExpiredTimerInfo(expiry),
                )
            )
            # As Spark: whoever registers it again for the same time loses it.
            timers.delete(expiry)
            if is_full:
                yield from flavour.batches()
        yield from flavour.batches()

    def _key_rows(self, numbers: set[int]) -> dict[int, Any]:
        """Keys as Rows: Spark gives them so to handlers of timers."""
        known = self._task.keys()
        self._handle.cursor.loaded = len(known)
        wanted = sorted(numbers)
        taken = known.take(pa.array(wanted, pa.int64()))
        codec = TupleCodec(spark_schema(known.schema))
        make = row_factory(self._program.key_schema.names)
        values = codec.read(pa.StructArray.from_arrays(taken.columns, fields=list(taken.schema)))
        return dict(zip(wanted, map(make, values), strict=True))
