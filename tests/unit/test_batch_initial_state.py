"""Processors in Arrow that begin with an initial state: as one of Rows that does the same."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyed import Operator
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

import clonos
from clonos._operators.state import check_flavour
from clonos.errors import ConfigError, UnsupportedType

INPUT = "id string, n long"
OUTPUT = StructType(
    [
        StructField("id", StringType()),
        StructField("what", StringType()),
        StructField("total", LongType()),
        StructField("seen", ArrayType(LongType())),
    ]
)
INITIAL = "id string, q long"
# A timer of the initial state waits for so many times its number.
TICK_MS = 100


class Begun(StatefulProcessor):
    """Adds up numbers and keeps them; odd ones of the initial state set timers, which forget."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "total long")
        self.seen = handle.getListState("seen", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.add(initialState.q)
        if initialState.q % 2:
            self.handle.registerTimer(initialState.q * TICK_MS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.add(row.n)
        yield self.shown(key, "rows")

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield self.shown(key, "timer")
        self.total.clear()

    def add(self, number: int) -> None:
        (before,) = self.total.get() or (0,)
        self.total.update((before + number,))
        self.seen.appendValue((number,))

    def shown(self, key: Any, what: str) -> Row:
        (total,) = self.total.get() or (None,)
        seen = [number for (number,) in self.seen.get()] or None
        return Row(id=key[0], what=what, total=total, seen=seen)


class ArrowBegun(clonos.BatchProcessor):
    """The same of all keys at once."""

    state_name = "total"
    state_schema = "total long"
    list_schemas = MappingProxyType({"seen": "n long"})

    def handle_initial_state(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> clonos.Handled:
        odd = pc.not_equal(pc.bit_wise_and(rows["q"], 1), 0)
        times = pc.if_else(odd, pc.multiply(rows["q"], TICK_MS), None)
        timers = [
            [time for time in of_key if time is not None]
            for of_key in rows.aggregate(times=(times, "list"))["times"].to_pylist()
        ]
        more = self.added(rows, "q", state)
        return more._replace(timers=pa.array(timers, pa.list_(pa.int64())))

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> clonos.Handled:
        more = self.added(rows, "n", state)
        before = pc.fill_null(state["seen"], pa.scalar([], state["seen"].type)).to_pylist()
        seen = [old + new for old, new in zip(before, more.append["seen"].to_pylist(), strict=True)]
        return more._replace(output=shown(keys, "rows", more.state["total"], seen))

    def handle_timers(
        self, keys: pa.RecordBatch, timers: clonos.GroupedRows, state: pa.RecordBatch
    ) -> clonos.Handled:
        outputs = [shown(keys, "timer", state["total"], state["seen"].to_pylist())]
        # All but the first timer of a key find nothing more.
        forgotten = pa.nulls(len(keys), pa.int64())
        again = pc.filter(timers.numbers, pc.greater(self.ranks(timers), 0))
        seen = state["seen"].take(again).to_pylist()
        outputs.append(shown(keys.take(again), "timer", forgotten.take(again), seen))
        left = pa.record_batch([forgotten], ["total"])
        return clonos.Handled(pa.concat_tables(outputs), left)

    @staticmethod
    def ranks(timers: clonos.GroupedRows) -> pa.Array:
        starts = timers.offsets.take(timers.numbers)
        return pc.subtract(pa.array(range(len(timers)), pa.int64()), starts)

    @staticmethod
    def added(rows: clonos.GroupedRows, name: str, state: pa.RecordBatch) -> clonos.Handled:
        new = rows.aggregate(total=(name, "sum"), seen=(name, "list"))
        total = pc.add(pc.fill_null(state["total"], 0), new["total"])
        seen = pa.record_batch([new["seen"]], ["seen"])
        return clonos.Handled(None, pa.record_batch([total], ["total"]), append=seen)


def shown(keys: pa.RecordBatch, what: str, total: pa.Array, seen: list[Any]) -> pa.Table:
    lists = pa.array(seen, pa.list_(pa.int64()))
    whats = pa.array([what] * len(keys), pa.string())
    return pa.table([keys["id"], whats, total, lists], ["id", "what", "total", "seen"])


def by_id(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows), key=repr)


def both(**options: Any) -> tuple[Operator, Operator]:
    options = {"time_mode": "processingTime", "initial": INITIAL} | options
    return (
        Operator(Begun(), INPUT, OUTPUT, **options),
        Operator(ArrowBegun(), INPUT, OUTPUT, flavour="arrow", **options),
    )


ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 20)), max_size=8)


@given(initial=ROWS, batches=st.lists(ROWS, min_size=1, max_size=4))
def test_it_begins_as_a_processor_of_rows_does(initial: Any, batches: list[Any]) -> None:
    of_rows, in_arrow = both()
    for at, rows in enumerate(batches):
        # Given in each batch, as a batch query does: it counts where there is no state yet.
        given = {"now": 500 * (at + 1), "initial": initial}
        assert by_id(in_arrow.batch(rows, **given)) == by_id(of_rows.batch(rows, **given))


def test_keys_without_rows_have_their_initial_state_and_their_timers() -> None:
    for operator in both():
        assert by_id(operator.batch([("a", 1)], now=0, initial=[("a", 4), ("b", 3)])) == [
            ("a", "rows", 5, [4, 1])
        ]
        assert by_id(operator.batch([("b", 2)], now=300, initial=[("c", 8)])) == [
            ("b", "rows", 5, [3, 2]),
            ("b", "timer", 5, [3, 2]),
        ]


class Wrong(ArrowBegun):
    """Has something to say before anything has come."""

    def handle_initial_state(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> clonos.Handled:
        return clonos.Handled(keys, state)


def test_output_of_the_initial_state_is_refused() -> None:
    operator = Operator(Wrong(), INPUT, OUTPUT, flavour="arrow", initial=INITIAL)
    with pytest.raises(UnsupportedType, match="handle_initial_state returns no output"):
        operator.batch([], initial=[("a", 1)])


class Without(clonos.BatchProcessor):
    """Knows nothing of initial states."""

    state_schema = "n long"

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> Any:
        return None, state


def test_a_processor_without_the_method_is_refused_before_it_runs() -> None:
    initial: Any = object()
    with pytest.raises(ConfigError, match=r"Without takes no initial_state: write its handle_init"):
        check_flavour(Without(), "arrow", initial)
    check_flavour(ArrowBegun(), "arrow", initial)
    check_flavour(Without(), "arrow", None)
