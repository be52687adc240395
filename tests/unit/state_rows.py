"""Has one task count many rows; prints its seconds and by how many MiB it grew.

python tests/unit/state_rows.py <rows> <bytes of them in memory>
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from keyed import Operator
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from clonos import _core
from clonos._state import opening
from clonos._state.run import run

KEYS, BATCH = 50_000, 20_000


class Count(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.count.update((sum(1 for _ in rows),))
        yield Row(id=key[0], what=str(self.count.get()[0]))


def batches(rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    dice = np.random.default_rng(1)
    for _ in range(rows // BATCH):
        keys = dice.integers(0, KEYS, BATCH).tolist()
        names = [f"user-{key}" for key in keys]
        texts = [f"of user {key}, who says nothing in some sixty letters again" for key in keys]
        columns = [pa.array(column) for column in (names, keys, texts)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def main(rows: int, rows_bytes: int) -> None:
    opening.ROWS_BYTES = rows_bytes
    operator = Operator(Count(), "id string, n long, text string", "id string, what string")
    program = replace(operator.program, processor=Count())
    task = _core.StateTask.open(
        None,
        query="q",
        operator="op",
        epoch="named",
        partition=0,
        partitions=1,
        keys=program.key_schema,
        variables=[variable.for_core() for variable in program.declared.values()],
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    counts = [
        int(count)
        for batch in run(program, task, batches(rows, operator.schema))
        for count in batch["what"].to_pylist()
    ]
    assert sum(counts) == rows
    seconds = time.perf_counter() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{seconds:.1f} {grown >> 10}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
