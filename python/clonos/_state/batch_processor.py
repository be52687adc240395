"""What users subclass to handle all keys of a task at once, in Arrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    Aggregation = tuple[str | pa.Array, str] | tuple[str | pa.Array, str, Any]

_KEY = "key"
# The method for an initial state.
STARTS = "handle_initial_state"


class Handled(NamedTuple):
    """What a `BatchProcessor` returns of a task's keys, where a pair does not do.

    Parameters
    ----------
    output : pyarrow.RecordBatch or pyarrow.Table, optional
        Rows of the declared schema, taken by name, as many as there are to emit.
    state : pyarrow.RecordBatch or pyarrow.Table
        The state from now on, one row for each of the keys, with the columns of `state_schema`,
        taken by name. A row of nulls removes a key's state, and leaves its lists. A column of a
        list's name puts lists in the place of those there are. The state as it was given changes
        nothing.
    timers : pyarrow.Array or pyarrow.ChunkedArray, optional
        When each key is to be handled again, in the place of all its timers so far, also of those
        that are due in this batch: a time in milliseconds since 1970 (int64), a list of such, or a
        null for never. ``None``, the default, leaves timers as they are.
    append : pyarrow.RecordBatch or pyarrow.Table, optional
        Columns by the names of lists, with what to put behind the elements of each key's list.
    """

    output: pa.RecordBatch | pa.Table | None
    state: pa.RecordBatch | pa.Table
    timers: pa.Array | pa.ChunkedArray | None = None
    append: pa.RecordBatch | pa.Table | None = None


class BatchProcessor(ABC):
    """A stateful processor of Arrow, which is called once per task and epoch with all its keys.

    For `clonos.transform_with_state` with ``flavour="arrow"``: no row becomes an object of Python.
    The state of a key is one row of `state_schema`.

    Attributes
    ----------
    state_schema : StructType or str
        Columns of the state, such as ``"count long, latest timestamp"``. They evolve by name from
        start to start: one that is new is null at first.
    state_name : str
        Name of the state, by default ``"state"``. That of a ``ValueState`` of a
        ``StatefulProcessor`` under the same `uid` goes on with what that had.
    list_schemas : mapping
        Lists that each key has besides, by name, such as ``{"latest": "temperature double"}``: what
        is put behind one is written alone. That of a ``ListState`` goes on with what that had.
    ttl_ms : int
        How long after it was last returned the state of a key is gone, or after it was appended an
        element of a list, in milliseconds of processing time; 0, the default, is never. Needs
        ``time_mode="processingTime"``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import pyarrow.compute as pc
    >>> class Count(clonos.BatchProcessor):
    ...     state_schema = "n long"
    ...
    ...     def handle_batch(self, keys, rows, state):
    ...         n = pc.add(pc.fill_null(state["n"], 0), rows.counts)
    ...         output = keys.append_column("count", n)
    ...         return output, pa.RecordBatch.from_arrays([n], ["n"])
    >>> counts = clonos.transform_with_state(  # doctest: +SKIP
    ...     *(df.groupBy("id"), Count(), "id string, count long", "update", "none"),
    ...     uid="count",
    ...     flavour="arrow",
    ... )
    """

    state_schema: StructType | str
    state_name: str = "state"
    list_schemas: Mapping[str, StructType | str] = MappingProxyType({})
    ttl_ms: int = 0

    @abstractmethod
    def handle_batch(
        self, keys: pa.RecordBatch, rows: GroupedRows, state: pa.RecordBatch
    ) -> Handled | tuple[pa.RecordBatch | pa.Table | None, pa.RecordBatch | pa.Table]:
        """Handle all rows of a task.

        What it returns must follow from what it is given and what the causal services tell it:
        it runs again at replay. It is not called in an epoch without rows.

        Parameters
        ----------
        keys : pyarrow.RecordBatch
            The keys that have rows in this epoch, one row each, in an order that is the same
            whenever the epoch runs again.
        rows : GroupedRows
            Their rows, by key.
        state : pyarrow.RecordBatch
            Their state, one row for each of `keys`, in which all columns of a key without state
            are null. Behind the columns of `state_schema` is one for each list, with its elements:
            values if they have one column, structs if several; null if there are none.

        Returns
        -------
        Handled, or tuple of output and state
        """

    def handle_initial_state(
        self,
        keys: pa.RecordBatch,  # noqa: ARG002  # for those who write their own
        rows: GroupedRows,  # noqa: ARG002
        state: pa.RecordBatch,
    ) -> Handled | pa.RecordBatch | pa.Table:
        """Begin with an initial state; to be written by you if there is one, which is refused else.

        It is called before `handle_batch`, in the first epoch of a task, whether its keys have rows
        in that or not.

        Parameters
        ----------
        keys : pyarrow.RecordBatch
            The keys that have rows in the initial state, one row each.
        rows : GroupedRows
            Those rows, with the columns of the initial state.
        state : pyarrow.RecordBatch
            Their state, as in `handle_batch`: all is null.

        Returns
        -------
        pyarrow.RecordBatch, pyarrow.Table or Handled
            The state, or a `Handled` without output.
        """
        return state

    def handle_timers(
        self,
        keys: pa.RecordBatch,  # noqa: ARG002  # for those who write their own
        timers: GroupedRows,  # noqa: ARG002
        state: pa.RecordBatch,
    ) -> Handled | tuple[pa.RecordBatch | pa.Table | None, pa.RecordBatch | pa.Table]:
        """Handle all timers of a task whose time has come; to be written by you if there are any.

        It is called after `handle_batch`, whose timers are among them, and in epochs without rows
        too, but not where none is due. A timer that is returned again for a time at which it has
        just fired is lost.

        Parameters
        ----------
        keys : pyarrow.RecordBatch
            The keys that have such timers, one row each.
        timers : GroupedRows
            Their times, in the one column ``expiry_ms``, the earliest of each key first.
        state : pyarrow.RecordBatch
            Their state, as in `handle_batch`, which has had its say.

        Returns
        -------
        Handled, or tuple of output and state
        """
        return None, state


class GroupedRows:
    """Rows by key, those of each in the order in which they came.

    Those of the key in row `k` of the keys are from ``offsets[k]`` to ``offsets[k + 1]``.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        All rows, with all columns, those of the keys among them.
    offsets : pyarrow.Int64Array
        Where each key's rows begin, and the last one's end: one more than there are keys.
    now_ms : int
        The batch's time, in milliseconds since 1970; -1 in the time mode ``"none"``.
    watermark_ms : int
        The watermark, likewise; -1 without one.
    timers : pyarrow.ListArray, optional
        The timers for which each key waits, in milliseconds since 1970, the earliest first; null if
        there are none.
    """

    def __init__(
        self,
        rows: pa.RecordBatch,
        offsets: pa.Int64Array,
        now_ms: int = -1,
        watermark_ms: int = -1,
        timers: pa.ListArray | None = None,
    ) -> None:
        self.rows = rows
        self.offsets = offsets
        self.now_ms = now_ms
        self.watermark_ms = watermark_ms
        self.timers = timers

    def __repr__(self) -> str:
        """Tell how many rows of how many keys there are, and of which columns."""
        keys, names = len(self.offsets) - 1, ", ".join(self.rows.schema.names)
        return f"<{len(self.rows)} rows of {keys} keys: {names}>"

    def __len__(self) -> int:
        """How many rows there are, of all keys."""
        return len(self.rows)

    def __getitem__(self, name: str) -> pa.Array:
        """Return a column of the rows.

        Raises
        ------
        KeyError
            If there is none of that name.
        """
        return self.rows[name]

    @cached_property
    def counts(self) -> pa.Int64Array:
        """Number of rows of each key."""
        import pyarrow.compute as pc

        return pc.subtract(self.offsets.slice(1), self.offsets.slice(0, len(self.offsets) - 1))

    @cached_property
    def numbers(self) -> pa.Int32Array:
        """Of each row, the number of its key: the place among the keys, from 0."""
        import numpy as np
        import pyarrow as pa

        counts = self.counts.to_numpy()
        return pa.array(np.repeat(np.arange(len(counts), dtype=np.int32), counts))

    def aggregate(self, **wanted: Aggregation) -> pa.RecordBatch:
        """Aggregate the rows of each key.

        Parameters
        ----------
        **wanted
            By the name of the result: a column's name, or an array with a value for each row; the
            name of one of ``pyarrow.TableGroupBy``'s functions, such as ``"sum"``, ``"count"``,
            ``"max"``, ``"first"`` or ``"list"``; and its options, if any.

        Returns
        -------
        pyarrow.RecordBatch
            One row for each key, in the order of the keys.

        Raises
        ------
        KeyError
            If there is no such column.
        pyarrow.ArrowException
            If there is no such function, or none for that type; or if an array has another length.

        Examples
        --------
        >>> rows.aggregate(  # doctest: +SKIP
        ...     n=("temperature", "count"),
        ...     hot=(pc.greater(rows["temperature"], 100), "sum"),
        ... )
        """
        import pyarrow as pa

        arrays: list[Any] = [self.numbers]
        steps: list[Any] = []
        for place, (column, function, *options) in enumerate(wanted.values()):
            arrays.append(self[column] if isinstance(column, str) else column)
            steps.append((str(place), function, *options))
        names = [_KEY, *(name for name, *_ in steps)]
        # On one thread: keys come out as they come in, and so do what "first" and "list" give.
        groups = pa.Table.from_arrays(arrays, names).group_by(_KEY, use_threads=False)
        found = groups.aggregate(steps)
        columns = [found[f"{name}_{function}"].combine_chunks() for name, function, *_ in steps]
        return pa.RecordBatch.from_arrays(columns, list(wanted))
