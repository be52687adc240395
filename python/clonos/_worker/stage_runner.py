"""Runs one attempt of a task with an exchange before it, after it, or both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from clonos import _core
from clonos._spec import Ends, OperatorSpec
from clonos._worker.partitions import open_task
from clonos._worker.place import addressed, current_place
from clonos._worker.service_runner import ServiceRunner
from clonos.errors import UnsupportedType

Batches = Iterator[pa.RecordBatch]


def run(
    spec: OperatorSpec, func: Callable[[Batches], Batches] | None, ends: Ends, batches: Batches
) -> Batches:
    """Run `func` between the exchanges of `ends`; without a function, the rows go through."""
    task = open_task(spec, None, inside=ends.schema is not None)
    runner = StageRunner(spec, func, ends, task)
    if task is not None and runner.stage.has_frames:
        return runner.resent(task)
    outputs = runner.inputs(batches)
    if func is not None:
        outputs = iter(func(outputs))
    if ends.schema is not None:
        return runner.frames(outputs, ends.schema)
    return outputs if task is None else ServiceRunner(task, func).pipelined(outputs)


class StageRunner:
    """Moves batches and frames between Spark, the user's function and the core."""

    def __init__(
        self,
        spec: OperatorSpec,
        func: Callable[[Batches], Batches] | None,
        ends: Ends,
        task: _core.ServiceTask | None,
    ) -> None:
        self._func = func
        self._ends = ends
        self._task = task
        config = None if spec.config is None else _core.SessionConfig.from_bytes(spec.config)
        # Senders and consumers are in one epoch, whichever stages they are in.
        place = current_place("" if config is None else config.app_id, "rdd")
        self.stage = _core.Stage(
            task,
            config,
            query="" if place is None else place.query,
            epoch="" if place is None else place.epoch,
            operator=spec.name,
            partition=0 if place is None else place.partition,
            sender=None if ends.sender is None else (ends.sender.operator, ends.sender.token),
            scatters=None if ends.schema is None else (list(ends.keys), ends.partitions),
        )

    def inputs(self, batches: Batches) -> Batches:
        """Rows of the partition: Spark's own, or those of the frames in it."""
        task, stage = self._task, self.stage
        if self._ends.sender is None:
            for batch in batches:
                if task is not None:
                    task.input(batch.columns)
                yield batch
            return
        addressed.set(None)
        for batch in batches:
            if batch.num_rows:
                addressed.set(batch.column(0)[0].as_py())
            stage.offer(batch.column(1))
            while (rows := stage.take()) is not None:
                yield from rows
        stage.end_input()

    def frames(self, outputs: Batches, schema: pa.Schema) -> Batches:
        """Send what the function returns: one batch of frames for each full round, and the rest."""
        task, stage = self._task, self.stage
        if task is not None:
            outputs = ServiceRunner(task, self._func).scoped(outputs)
        try:
            for output in outputs:
                if stage.push(conform(output, schema)):
                    frames = stage.cut(False)
                    if frames is not None:
                        yield frames
            last = stage.cut(True)
            if task is not None:
                # Before the last frames leave: if this attempt was fenced, it fails here.
                task.settle()
                task.finish()
            if last is not None:
                yield last
        except BaseException:
            with contextlib.suppress(Exception):
                if task is not None:
                    stage.publish_answers()
            raise
        finally:
            if task is not None:
                task.close()

    def resent(self, task: _core.ServiceTask) -> Batches:
        """The frames of an earlier attempt, from the in-flight log; no input is read."""
        try:
            piece = self.stage.resend(0)
            while piece is not None:
                frames, start = piece
                # The next piece is asked for first, so that the task is over when the last leaves.
                piece = self.stage.resend(start)
                if piece is None:
                    task.finish()
                yield frames
        finally:
            task.close()


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give `batch` the declared schema: columns by name, types cast where they differ.

    Raises
    ------
    UnsupportedType
        If a declared column is missing or cannot be cast; the message names it.
    """
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            message = f"column {field.name!r} is declared and not returned: {batch.schema.names}"
            raise UnsupportedType(message, "UNSUPPORTED_TYPE")
        column: Any = batch.column(index)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                message = f"column {field.name!r} is declared {field.type}: {error}"
                raise UnsupportedType(message, "UNSUPPORTED_TYPE") from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
