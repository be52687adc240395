"""State and timers of the keys of a task in Arrow: as they are stored, and as they were changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from clonos._state.flavour import in_zone
from clonos._state.states import CLEAR, DELETE, PUT
from clonos._state.timers import DELETE as FORGET
from clonos._state.timers import REGISTER

if TYPE_CHECKING:
    from clonos import _core
    from clonos._worker.task_conf import TaskConf

Numbers = np.ndarray[Any, Any]
# Place of the variable with one value for each key; behind it are the lists.
_STATE = 0


class Held(NamedTuple):
    """State of some keys, a row for each: whether one is stored, and its columns with the lists."""

    is_there: Numbers
    columns: pa.RecordBatch

    def take(self, places: Numbers) -> Held:
        """Return that of some of the keys."""
        return Held(self.is_there[places], self.columns.take(pa.array(places, pa.int64())))

    def followed_by(self, other: Held) -> Held:
        """Return that of these keys and of others."""
        both = zip(self.columns.columns, other.columns.columns, strict=True)
        columns = [pa.concat_arrays(pair) for pair in both]
        is_there = np.concatenate([self.is_there, other.is_there])
        names = self.columns.schema.names
        return Held(is_there, pa.RecordBatch.from_arrays(columns, names))


class BatchState:
    """Reads and writes the variables of a `BatchProcessor`.

    Parameters
    ----------
    task : _core.StateTask
    schema : pyarrow.Schema
        Columns of the one value.
    lists : mapping
        The lists' names, and the columns of their elements.
    conf : TaskConf
    """

    def __init__(
        self,
        task: _core.StateTask,
        schema: pa.Schema,
        lists: Mapping[str, pa.Schema],
        conf: TaskConf,
    ) -> None:
        self._task = task
        self._conf = conf
        self._lists = lists
        self.schema = schema
        #: Of each list, what one element is: a value if it has one column, a struct of several.
        self.elements = {name: _element(of_list) for name, of_list in lists.items()}
        columns = [pa.field(name, pa.list_(kind)) for name, kind in self.elements.items()]
        #: Columns of what a processor is given, as they are written.
        self.with_lists = pa.schema([*schema, *columns])

    def read(self, first: int, count: int) -> Held:
        """What is stored of `count` keys from number `first` on."""
        numbers, _, values = self._task.values(_STATE, first)
        is_there = np.zeros(count, dtype=bool)
        is_there[np.asarray(numbers) - first] = True
        columns = values.flatten()
        if not is_there.all():
            # A null takes a null.
            places = pa.array(np.cumsum(is_there) - 1, pa.int64(), mask=~is_there)
            columns = [column.take(places) for column in columns]
        for place, name in enumerate(self._lists):
            numbers, _, values = self._task.values(_STATE + 1 + place, first)
            elements = values.flatten()[0] if len(values.type) == 1 else values
            counts = np.bincount(np.asarray(numbers) - first, minlength=count)
            columns.append(lists_of(counts, elements, self.elements[name]))
        columns = [in_zone(column, self._conf) for column in columns]
        return Held(is_there, pa.RecordBatch.from_arrays(columns, self.with_lists.names))

    def write(self, keys: Numbers, is_there: Numbers, state: pa.Table) -> Numbers:
        """Put a row of state for each key; whether each has one now. Rows of nulls delete."""
        columns = [column.combine_chunks() for column in state.columns]
        kept = np.zeros(len(keys), dtype=bool)
        for column in columns:
            kept |= np.asarray(column.is_valid())
        written = kept | is_there
        values = pa.StructArray.from_arrays(columns, fields=list(self.schema))
        if not kept.all():
            values = values.filter(pa.array(kept))
        self._task.write(
            _STATE,
            pa.array(keys[written], pa.int32()),
            pa.array(np.where(kept[written], PUT, DELETE), pa.uint8()),
            None,
            values,
        )
        return kept

    def write_list(
        self, name: str, keys: Numbers, lists: pa.ListArray, is_over: Numbers | None = None
    ) -> None:
        """Append lists to those of the keys; where those are over, put them in their place."""
        counts = counts_of(lists)
        numbers, ops = np.repeat(keys, counts), np.full(counts.sum(), PUT)
        if is_over is not None:
            # Before the first element of each key.
            starts = (np.cumsum(counts) - counts)[is_over]
            numbers = np.insert(numbers, starts, keys[is_over])
            ops = np.insert(ops, starts, CLEAR)
        if not len(numbers):
            return
        of_list, elements = self._lists[name], lists.flatten()
        if len(of_list) == 1:
            elements = pa.StructArray.from_arrays([elements], fields=list(of_list))
        place = _STATE + 1 + list(self._lists).index(name)
        self._task.write(
            place, pa.array(numbers, pa.int32()), pa.array(ops, pa.uint8()), None, elements
        )


class BatchTimers:
    """Timers of the keys of a task, as pairs of a key's number and a time."""

    def __init__(self, task: _core.StateTask) -> None:
        self._task = task

    def read(self, first: int, count: int) -> pa.ListArray:
        """Pending timers of `count` keys from number `first` on, the earliest first."""
        numbers, expiries = self._task.timers(first)
        counts = np.bincount(np.asarray(numbers) - first, minlength=count)
        return lists_of(counts, expiries, pa.int64())

    def due(self, until: int) -> tuple[Numbers, Numbers]:
        """Stored timers that are due; keys that are new get numbers."""
        numbers, expiries = self._task.due(until)
        return np.asarray(numbers), np.asarray(expiries)

    def replace(self, keys: Numbers, before: pa.ListArray, now: pa.ListArray) -> None:
        """Have keys wait for other times than before."""
        old, new = pairs_of(keys, before), pairs_of(keys, now)
        self._write(without(old, new), FORGET)
        self._write(without(new, old), REGISTER)

    def delete(self, numbers: Numbers, expiries: Numbers) -> None:
        """Forget timers that have fired."""
        self._write((numbers, expiries), FORGET)

    def _write(self, pairs: tuple[Numbers, Numbers], op: int) -> None:
        keys, expiries = pairs
        if len(keys):
            ops = pa.array(np.full(len(keys), op), pa.uint8())
            self._task.write_timers(pa.array(keys, pa.int32()), ops, pa.array(expiries, pa.int64()))


def _element(of_list: pa.Schema) -> pa.DataType:
    return of_list.field(0).type if len(of_list) == 1 else pa.struct(list(of_list))


def lists_of(counts: Numbers, elements: pa.Array, kind: pa.DataType) -> pa.ListArray:
    """Lists of so many elements each, null where that is none."""
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()),
        elements.cast(kind),
        mask=pa.array(counts == 0),
    )


def counts_of(lists: pa.ListArray) -> Numbers:
    """How many elements each list has."""
    return np.asarray(lists.value_lengths().fill_null(0), dtype=np.int64)


def joined(first: pa.ListArray, second: pa.ListArray) -> pa.ListArray:
    """Put the elements of each list of `second` behind those of `first`."""
    before, after = counts_of(first), counts_of(second)
    elements = pa.concat_arrays([first.flatten(), second.flatten().cast(first.type.value_type)])
    # Of each element the number of its list; the sort leaves those of `first` in front.
    numbers = np.concatenate([np.repeat(np.arange(len(n)), n) for n in (before, after)])
    order = np.argsort(numbers, kind="stable")
    taken = elements.take(pa.array(order, pa.int64()))
    return lists_of(before + after, taken, first.type.value_type)


def pairs_of(keys: Numbers, expiries: pa.ListArray) -> tuple[Numbers, Numbers]:
    """Each time in the lists, with the key whose list it is in."""
    return np.repeat(keys, counts_of(expiries)), np.asarray(expiries.flatten())


def without(
    pairs: tuple[Numbers, Numbers], others: tuple[Numbers, Numbers]
) -> tuple[Numbers, Numbers]:
    """Pairs that are not among others."""
    times, codes = np.unique(np.concatenate([pairs[1], others[1]]), return_inverse=True)
    of_pairs, of_others = codes[: len(pairs[1])], codes[len(pairs[1]) :]
    left = ~np.isin(
        pairs[0].astype(np.int64) * len(times) + of_pairs,
        others[0].astype(np.int64) * len(times) + of_others,
    )
    return pairs[0][left], pairs[1][left]
