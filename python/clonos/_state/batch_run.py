"""Runs a `BatchProcessor` over one partition of one epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from clonos import _core
from clonos._arrow_types import arrow_schema
from clonos._state import refusals
from clonos._state.batch_processor import STARTS, BatchProcessor, GroupedRows, Handled
from clonos._state.batch_returns import as_declared, as_handled, as_started, as_timers
from clonos._state.batch_state import (
    BatchState,
    BatchTimers,
    Held,
    Numbers,
    joined,
    lists_of,
    pairs_of,
    without,
)
from clonos._state.events import check_output, without_late_rows
from clonos._state.flavour import in_zone
from clonos._state.opening import gather
from clonos._state.parted import Grouped, split
from clonos._state.program import Program
from clonos._state.variables import TimeMode
from clonos._worker.task_conf import current_conf

Batches = Iterator[pa.RecordBatch]
# Rows of output that leave together: each batch waits until what it follows from is stable.
OUTPUT_ROWS = 65_536


class Left(NamedTuple):
    """What some keys were left with: their state, what was appended to lists, their timers."""

    held: Held
    appended: dict[str, pa.ListArray]
    timers: pa.ListArray

    def take(self, places: Numbers) -> tuple[Held, pa.ListArray]:
        """State and timers of some of the keys."""
        held, at = self.held.take(places), pa.array(places, pa.int64())
        columns = dict(zip(held.columns.schema.names, held.columns.columns, strict=True))
        for name, more in self.appended.items():
            columns[name] = joined(columns[name], more.take(at))
        batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        return Held(held.is_there, batch), self.timers.take(at)

    def replaced(self, places: Numbers, by: Left) -> Left:
        """What all keys were left with, where those at some places were left with that since."""
        count = len(self.timers)
        held, timers = self.take(np.arange(count))
        since, waiting = by.take(np.arange(len(places)))
        at = np.arange(count)
        at[places] = count + np.arange(len(places))
        timers = pa.concat_arrays([timers, waiting]).take(pa.array(at, pa.int64()))
        return Left(held.followed_by(since).take(at), {}, timers)


class BatchRunner:
    """One task of a stateful operator in Arrow."""

    def __init__(self, program: Program, task: _core.StateTask) -> None:
        self._program = program
        self._task = task
        self._processor: BatchProcessor = program.processor
        self._conf = current_conf(program.conf)
        value, *lists = (program.declared[name] for name in program.variables)
        of_lists = {variable.name: arrow_schema(variable.values) for variable in lists}
        self._state = BatchState(task, arrow_schema(value.values), of_lists, self._conf)
        self._timers = BatchTimers(task)
        self._has_times = program.time_mode is not TimeMode.NONE
        self._left: Left | None = None
        # That was called last, for errors.
        self._method = ""

    def run(self, batches: Batches) -> Batches:
        """Handle the rows of all keys, then the timers that are due; and commit."""
        program, task = self._program, self._task
        gathered = gather(program, task, without_late_rows(batches, program, task)).take()
        if gathered:
            yield from self._data(gathered)
        if self._has_times:
            yield from self._due()
        self._task.commit()

    # -- rows ------------------------------------------------------------------------------------

    def _data(self, gathered: Sequence[pa.RecordBatch]) -> Batches:
        task, program = self._task, self._program
        rows, offsets, keys = task.group(gathered, list(program.keys))
        task.load()
        data, initial = split(Grouped(rows, offsets), program)
        left = Left(self._state.read(0, len(keys)), {}, self._timers.read(0, len(keys)))
        if initial is not None and task.version is None:
            left, _ = self._part(STARTS, keys, initial, left)
        self._left, handled = self._part("handle_batch", keys, data, left)
        yield from self._output(handled)

    def _part(
        self, method: str, keys: pa.RecordBatch, grouped: Grouped, left: Left
    ) -> tuple[Left, Handled]:
        """Have the processor handle the keys that have rows among these."""
        counts = np.diff(np.asarray(grouped.offsets, dtype=np.int64))
        numbers = np.flatnonzero(counts)
        if not len(numbers):
            return left, Handled(None, left.held.columns)
        is_all = len(numbers) == len(keys)
        if is_all and not left.appended:
            held, timers = left.held, left.timers
        else:
            held, timers = left.take(numbers)
            keys = keys.take(pa.array(numbers, pa.int64()))
        offsets = np.concatenate([[0], np.cumsum(counts[numbers])])
        handled = self._handled(method, keys, self._grouped(grouped.rows, offsets, timers), held)
        now = self._keep(handled, numbers, held, timers)
        return now if is_all else left.replaced(numbers, now), handled

    def _handled(self, method: str, keys: pa.RecordBatch, rows: GroupedRows, held: Held) -> Handled:
        self._method = method
        made = getattr(self._processor, method)(self._in_zone(keys), rows, held.columns)
        return as_started(method, made) if method == STARTS else as_handled(method, made)

    def _grouped(self, rows: pa.RecordBatch, offsets: Numbers, timers: pa.ListArray) -> GroupedRows:
        task = self._task
        times = (task.now_ms, task.watermark_ms) if self._has_times else (-1, -1)
        return GroupedRows(self._in_zone(rows), pa.array(offsets, pa.int64()), *times, timers)

    def _in_zone(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [in_zone(column, self._conf) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, batch.schema.names)

    # -- timers ----------------------------------------------------------------------------------

    def _due(self) -> Batches:
        """Have the processor handle the timers that are due, those of this batch among them."""
        task, mode = self._task, self._program.time_mode
        until = task.now_ms if mode is TimeMode.PROCESSING_TIME else task.watermark_ms
        fired = self._fired(until)
        if not len(fired[0]):
            return
        numbers, places = np.unique(fired[0], return_inverse=True)
        keys = task.keys()
        held, timers = self._now(numbers, len(keys))
        waiting = without(pairs_of(np.arange(len(numbers)), timers), (places, fired[1]))
        counts = np.bincount(waiting[0], minlength=len(numbers))
        timers = lists_of(counts, pa.array(waiting[1], pa.int64()), pa.int64())
        offsets = np.concatenate([[0], np.cumsum(np.bincount(places))])
        times = pa.RecordBatch.from_arrays([pa.array(fired[1], pa.int64())], ["expiry_ms"])
        taken = [column.take(pa.array(numbers, pa.int64())) for column in keys.columns]
        of_due = pa.RecordBatch.from_arrays(taken, self._program.key_schema.names)
        grouped = self._grouped(times, offsets, timers)
        handled = self._handled("handle_timers", of_due, grouped, held)
        self._keep(handled, numbers, held, timers)
        # As Spark: whoever registers one again for the same time loses it.
        self._timers.delete(*fired)
        yield from self._output(handled)

    def _fired(self, until: int) -> tuple[Numbers, Numbers]:
        """Key numbers and times of the timers that are due, by key and time."""
        numbers, expiries = self._timers.due(until)
        if self._left is not None:
            waiting = self._left.timers
            stored = numbers >= len(waiting)
            own, times = pairs_of(np.arange(len(waiting)), waiting)
            numbers = np.concatenate([numbers[stored], own[times <= until]])
            expiries = np.concatenate([expiries[stored], times[times <= until]])
        order = np.lexsort((expiries, numbers))
        return numbers[order], expiries[order]

    def _now(self, numbers: Numbers, count: int) -> tuple[Held, pa.ListArray]:
        """State and timers of keys as they are now; those without rows are the last of `count`."""
        first = 0 if self._left is None else len(self._left.timers)
        held, timers = (
            self._state.read(first, count - first),
            self._timers.read(first, count - first),
        )
        places = pa.array(numbers[numbers >= first] - first, pa.int64())
        held, timers = held.take(np.asarray(places)), timers.take(places)
        if self._left is None:
            return held, timers
        left, waiting = self._left.take(numbers[numbers < first])
        return left.followed_by(held), pa.concat_arrays([waiting, timers])

    # -- what is returned ------------------------------------------------------------------------

    def _keep(self, handled: Handled, numbers: Numbers, held: Held, timers: pa.ListArray) -> Left:
        """Write what a handler changed; return what its keys were left with."""
        state, count = self._state, len(numbers)
        if handled.state is not held.columns:
            held = self._write(handled.state, numbers, held)
        appended = {}
        if handled.append is not None:
            schema = pa.schema([state.with_lists.field(name) for name in state.elements])
            table = as_declared(self._what("append"), handled.append, pa.schema([]), count, schema)
            for name in table.schema.names:
                lists = table[name].combine_chunks()
                state.write_list(name, numbers, lists)
                appended[name] = in_zone(lists, self._conf)
        if handled.timers is not None:
            if not self._has_times:
                mode = self._program.time_mode.value
                reason = refusals.time_mode("register_timer", mode)
                raise refusals.refused("register timer", reason)
            before, timers = timers, as_timers(self._what("timers"), handled.timers, count)
            self._timers.replace(numbers, before, timers)
        return Left(held, appended, timers)

    def _what(self, part: str) -> str:
        return f"{part} that {self._method}"

    def _write(self, made: Any, numbers: Numbers, before: Held) -> Held:
        state = self._state
        optional = pa.schema([state.with_lists.field(name) for name in state.elements])
        table = as_declared(self._what("state"), made, state.schema, len(numbers), optional)
        is_there = state.write(numbers, before.is_there, table.select(state.schema.names))
        columns = []
        for name, given in zip(before.columns.schema.names, before.columns.columns, strict=True):
            if name not in table.schema.names:
                columns.append(given)
                continue
            column = table[name].combine_chunks()
            now = in_zone(column, self._conf)
            if name in state.elements:
                self._write_lists(name, (numbers, column), (given, now))
            columns.append(now)
        return Held(is_there, pa.RecordBatch.from_arrays(columns, before.columns.schema.names))

    def _write_lists(
        self,
        name: str,
        to_write: tuple[Numbers, pa.ListArray],
        changed: tuple[pa.ListArray, pa.ListArray],
    ) -> None:
        """Write the lists that are others now: those of other keys go on to age."""
        (numbers, column), (given, now) = to_write, changed
        if now.equals(given):
            return
        marks = [np.asarray(_core.row_fingerprints([lists])) for lists in changed]
        places = np.flatnonzero(marks[0] != marks[1])
        had = np.asarray(given.is_valid())[places]
        self._state.write_list(name, numbers[places], column.take(pa.array(places)), had)

    def _output(self, handled: Handled) -> Batches:
        if handled.output is None:
            return
        table = as_declared(
            self._what("output"), handled.output, arrow_schema(self._program.output)
        )
        for batch in table.to_batches(OUTPUT_ROWS):
            check_output(batch, self._program, self._task)
            yield batch
