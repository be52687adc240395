"""What travels to the workers of a stateful operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from clonos._state.variables import TimeMode, Variable
from clonos._worker.task_conf import TaskConf

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Flavour = Literal["row", "pandas", "arrow"]


@dataclass(frozen=True)
class EventTime:
    """The event time of the input: a column, or the end of the windows in one."""

    column: int
    is_window: bool


@dataclass(frozen=True)
class Program:
    """A user's processor, and all that running it needs to be told.

    Parameters
    ----------
    processor : StatefulProcessor or BatchProcessor
    flavour : {"row", "pandas", "arrow"}
        Whether it takes and returns Rows, frames, or Arrow of all keys at once.
    time_mode : TimeMode
    declared : dict
        All variables that ``init`` asks for, by name; of a `BatchProcessor`, its state.
    variables : tuple of str
        Names of those that it has not deleted again.
    deleted : tuple of str
        Names that it deletes: what stands under them from before is gone.
    keys : tuple of int
        Places of the key columns among those of the input.
    key_schema : pyarrow.Schema
        Their names, as the program has them, and types.
    columns : int
        The first columns are the rows, the others only keys or initial state.
    initial : int, optional
        Place of the column with the rows of the initial state.
    output : StructType
    event_time : EventTime, optional
        Of the input, if late rows are to be dropped.
    output_event_time : str, optional
        The column of the output that is its event time.
    conf : TaskConf
        Spark's settings.
    config : bytes, optional
        The session, or ``None`` where nothing is attached.
    operator : str
    partitions : int
    is_kept : bool
        Whether there is state from one batch to the next.
    is_adopted : bool
        Whether the program was written for Spark's own operator.
    state_from : tuple of str and int, optional
        The savepoint with which it begins, a folder or a URL, and what tells it from others.
    """

    processor: Any
    flavour: Flavour
    time_mode: TimeMode
    declared: dict[str, Variable]
    variables: tuple[str, ...]
    deleted: tuple[str, ...]
    keys: tuple[int, ...]
    key_schema: pa.Schema
    columns: int
    initial: int | None
    output: StructType
    event_time: EventTime | None
    output_event_time: str | None
    conf: TaskConf
    config: bytes | None
    operator: str
    partitions: int
    is_kept: bool = True
    is_adopted: bool = False
    state_from: tuple[str, int] | None = None
