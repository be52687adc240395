"""Rows of a task by key: those of the data, and those of an initial state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from clonos._state.program import Program


class Grouped(NamedTuple):
    """Rows by key: those of key `n` are from ``offsets[n]`` to ``offsets[n + 1]``."""

    rows: pa.RecordBatch
    offsets: Sequence[int]


def split(grouped: Grouped, program: Program) -> tuple[Grouped, Grouped | None]:
    """Part the rows of data from those of the initial state."""
    rows, offsets = grouped
    data_columns = range(program.columns)
    if program.initial is None:
        return Grouped(rows.select(list(data_columns)), offsets), None
    column = rows.column(program.initial)
    is_initial = np.asarray(column.is_valid())
    before = np.concatenate([[0], np.cumsum(is_initial)])[np.asarray(offsets)]
    starting = column.filter(column.is_valid())
    initial = pa.RecordBatch.from_arrays(starting.flatten(), names=[f.name for f in starting.type])
    data = rows.select(list(data_columns)).filter(column.is_null())
    left = (np.asarray(offsets) - before).tolist()
    return Grouped(data, left), Grouped(initial, before.tolist())
