"""Stateful operators without Spark: batches of rows through one task, whose state is kept here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from clonos import _core
from clonos._operators.initial_state import INITIAL
from clonos._operators.state import declared
from clonos._state import opening
from clonos._state.program import EventTime, Flavour, Program
from clonos._state.run import run
from clonos._state.variables import TIME_MODES, arrow_schema
from clonos._worker.task_conf import TaskConf

PART_BYTES: int | None = None


def parsed(schema: StructType | str) -> StructType:
    """Parse "name type, …" of the few types that tests use: there is no JVM."""
    from pyspark.sql import types

    if not isinstance(schema, str):
        return schema
    kinds = {
        "long": types.LongType(),
        "int": types.IntegerType(),
        "double": types.DoubleType(),
        "string": types.StringType(),
        "boolean": types.BooleanType(),
        "timestamp": types.TimestampType(),
        "date": types.DateType(),
        "binary": types.BinaryType(),
        "decimal": types.DecimalType(10, 2),
        "longs": types.ArrayType(types.LongType()),
    }
    fields = [part.split() for part in schema.split(",")]
    return StructType([types.StructField(name, kinds[kind]) for name, kind in fields])


class Operator:
    """A stateful operator of one task.

    Parameters
    ----------
    processor : StatefulProcessor or BatchProcessor
    schema : str
    output : str or StructType
        Columns of the rows, of which the first is the key, and of the output.
    initial : str, optional
        Columns of an initial state, of which the first is the key.
    """

    def __init__(
        self,
        processor: Any,
        schema: str,
        output: str | StructType,
        *,
        time_mode: str = "none",
        flavour: Flavour = "row",
        keys: int = 1,
        event_time: EventTime | None = None,
        initial: str | None = None,
    ) -> None:
        mode = TIME_MODES[time_mode.lower()]
        handle = declared(processor, mode, parsed)
        self._pickled = cloudpickle.dumps(processor)
        self.schema = arrow_schema(parsed(schema))
        columns = len(self.schema)
        if initial is not None:
            kept = pa.struct(list(arrow_schema(parsed(initial))))
            self.schema = self.schema.append(pa.field(INITIAL, kept))
        names = tuple(variable.name for variable in handle.variables)
        self.program = Program(
            processor=None,
            flavour=flavour,
            time_mode=mode,
            declared=handle.asked,
            variables=names,
            deleted=tuple(handle.deleted),
            keys=tuple(range(keys)),
            key_schema=pa.schema(list(self.schema)[:keys]),
            columns=columns,
            initial=None if initial is None else columns,
            output=parsed(output),
            event_time=event_time,
            output_event_time=None,
            conf=TaskConf(),
            config=None,
            operator="op",
            partitions=1,
        )
        #: How much of each list and map is loaded with its key.
        self.part_bytes = PART_BYTES
        #: Rows that are in memory at a time; of 0, those of a range of keys.
        self.rows_bytes = opening.ROWS_BYTES
        self._state = _core.LocalState()
        self._epoch = 0

    def change(self, how: Callable[[Any], None]) -> None:
        """Change the processor, as a program does that is started again."""
        processor = cloudpickle.loads(self._pickled)
        how(processor)
        self._pickled = cloudpickle.dumps(processor)

    def change_to(self, processor: Any, *, flavour: Flavour, output: str | None = None) -> None:
        """Put another processor in its place, on the same state."""
        handle = declared(processor, self.program.time_mode, parsed)
        self._pickled = cloudpickle.dumps(processor)
        self.program = replace(
            self.program,
            flavour=flavour,
            declared=handle.asked,
            variables=tuple(variable.name for variable in handle.variables),
            deleted=tuple(handle.deleted),
            output=self.program.output if output is None else parsed(output),
        )

    def batch(
        self,
        rows: Sequence[tuple[Any, ...]],
        *,
        now: int = 1_000,
        watermark: int = -1,
        late: int = -1,
        processor: Any = None,
        initial: Sequence[tuple[Any, ...]] = (),
    ) -> list[dict[str, Any]]:
        """Run one epoch, and return its output; `processor` in the place of a copy of ours."""
        if self.program.initial is not None:
            rows = self._with_initial(rows, initial)
        self._epoch += 1
        self._state.set_clock(now, watermark, late)
        variables = self.program.declared
        task = _core.StateTask.open(
            None,
            query="q",
            operator="op",
            epoch=self._epoch,
            partition=0,
            partitions=1,
            keys=self.program.key_schema,
            variables=[variables[name].for_core() for name in self.program.variables],
            deleted=self.program.deleted,
            local=self._state,
            part_bytes=None if self.program.flavour == "arrow" else self.part_bytes,
        )
        # As Spark, which reads it anew for each task.
        program = replace(self.program, processor=processor or cloudpickle.loads(self._pickled))
        columns = list(zip(*rows, strict=True)) or [[] for _ in self.schema]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)]
        given = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        with patch.object(opening, "ROWS_BYTES", self.rows_bytes):
            outputs = list(run(program, task, iter([given])))
        self._state.commit("q", "op", self._epoch)
        return [row for output in outputs for row in output.to_pylist()]

    def _with_initial(
        self, rows: Sequence[tuple[Any, ...]], initial: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        names = [field.name for field in self.schema.field(INITIAL).type]
        nulls = (None,) * (self.program.columns - 1)
        return [(*row, None) for row in rows] + [
            (row[0], *nulls, dict(zip(names, row, strict=True))) for row in initial
        ]
