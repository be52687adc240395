"""Timers and lists of processors in Arrow: as one of Rows that does the same, and by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keyed import Operator
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import clonos
from clonos import Handled
from clonos.errors import ConfigError, UnsupportedType

INPUT = "id string, n long"
OUTPUT = "id string, what string"
TIME = "processingTime"


class Alarms(StatefulProcessor):
    """Keeps numbers until a zero, and has two timers after each that is above zero."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        self.seen = handle.getListState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = sorted(n for (n,) in self.seen.get()), list(self.handle.listTimers())
        numbers = [row.n for row in rows]
        if 0 in numbers:
            self.seen.clear()
        for n in numbers:
            if n > 0:
                self.seen.appendValue((n,))
        self.add(len(numbers))
        if max(numbers) > 0:
            for expiry in list(self.handle.listTimers()):
                self.handle.deleteTimer(expiry)
            due = timerValues.getCurrentProcessingTimeInMs() + (max(numbers) - 1) * 400
            self.handle.registerTimer(due)
            self.handle.registerTimer(due + 300)
        yield Row(id=key[0], what=f"{before} {self.count.get()[0]}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        self.add(1000)
        if expiry % 3 == 0:
            self.seen.clear()
        if expiry % 8 == 0:
            self.handle.registerTimer(expiry + 700)
        yield Row(id=key[0], what=f"timer {expiry}")

    def add(self, n: int) -> None:
        self.count.update(((self.count.get() or (0,))[0] + n,))


class ArrowAlarms(clonos.BatchProcessor):
    """The same of all keys at once."""

    state_schema = "n long"
    state_name = "count"
    list_schemas: ClassVar = {"seen": "n long"}

    def handle_batch(self, keys: Any, rows: clonos.GroupedRows, state: pa.RecordBatch) -> Handled:
        new = rows.aggregate(
            has_zero=(pc.equal(rows["n"], 0), "any"),
            seen=(pc.if_else(pc.greater(rows["n"], 0), rows["n"], None), "list"),
            most=("n", "max"),
        )
        count = pc.add(pc.fill_null(state["n"], 0), rows.counts)
        first = pc.add(pc.multiply(pc.subtract(new["most"], 1), 400), rows.now_ms)
        timers = [
            [due, due + 300] if most > 0 else waiting
            for due, most, waiting in zip(
                first.to_pylist(), new["most"].to_pylist(), rows.timers.to_pylist(), strict=True
            )
        ]
        shown = [
            f"{sorted(seen or [])!r}, {waiting or []}"
            for seen, waiting in zip(
                state["seen"].to_pylist(), rows.timers.to_pylist(), strict=True
            )
        ]
        what = [f"({s}) {n}" for s, n in zip(shown, count.to_pylist(), strict=True)]
        left = pc.if_else(new["has_zero"], pa.scalar(None, state["seen"].type), state["seen"])
        some = [[n for n in ns if n is not None] for ns in new["seen"].to_pylist()]
        return Handled(
            pa.table({"id": keys["id"], "what": what}),
            pa.table({"n": count, "seen": left}),
            pa.array(timers, pa.list_(pa.int64())),
            pa.table({"seen": pa.array(some, pa.list_(pa.int64()))}),
        )

    def handle_timers(self, keys: Any, timers: clonos.GroupedRows, state: Any) -> Handled:
        expiry = timers["expiry_ms"].to_numpy()
        due = timers.aggregate(
            is_over=(pa.array(expiry % 3 == 0), "any"),
            again=(pa.array([e + 700 if e % 8 == 0 else None for e in expiry.tolist()]), "list"),
        )
        count = pc.add(state["n"], pc.multiply(timers.counts, 1000))
        seen = pc.if_else(due["is_over"], pa.scalar(None, state["seen"].type), state["seen"])
        ids = keys["id"].take(timers.numbers)
        again = [
            (waiting or []) + [t for t in new if t is not None]
            for waiting, new in zip(
                timers.timers.to_pylist(), due["again"].to_pylist(), strict=True
            )
        ]
        return Handled(
            pa.table({"id": ids, "what": [f"timer {e}" for e in expiry.tolist()]}),
            pa.table({"seen": seen, "n": count}),
            pa.array(again, pa.list_(pa.int64())),
        )


def by_id(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows)


ROWS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(-1, 4)), max_size=6)


@given(st.lists(st.tuples(ROWS, st.booleans()), max_size=8))
@settings(max_examples=60)
def test_it_does_what_a_processor_of_rows_does(batches: list[Any]) -> None:
    of_rows = Operator(Alarms(), INPUT, OUTPUT, time_mode=TIME)
    in_arrow = Operator(ArrowAlarms(), INPUT, OUTPUT, flavour="arrow", time_mode=TIME)
    sides = [(of_rows, Alarms(), "row"), (in_arrow, ArrowAlarms(), "arrow")]
    for at, (rows, change) in enumerate(batches):
        now = 1_000 + at * 500
        found, expected = (by_id(side.batch(rows, now=now)) for side, *_ in reversed(sides))
        assert found == expected
        if change:
            # Each goes on with what the other has kept.
            sides = [(sides[1][0], *sides[0][1:]), (sides[0][0], *sides[1][1:])]
            for side, processor, flavour in sides:
                side.change_to(processor, flavour=flavour)  # type: ignore[arg-type]


class Given(clonos.BatchProcessor):
    """Returns what functions make."""

    state_schema = "n long"
    list_schemas: ClassVar = {"one": "n long", "two": "n long, s string"}

    def __init__(self, make: Callable[..., Any], on_timer: Callable[..., Any] | None = None):
        self.make, self.on_timer = make, on_timer

    def handle_batch(self, keys: Any, rows: Any, state: Any) -> Any:
        return self.make(keys, rows, state)

    def handle_timers(self, keys: Any, timers: Any, state: Any) -> Any:
        return self.on_timer(keys, timers, state)


def in_arrow(make: Callable[..., Any], **options: Any) -> Operator:
    options = {"time_mode": TIME, **options}
    return Operator(Given(make), INPUT, "id string", flavour="arrow", **options)


TWO_KEYS = [("a", 1), ("b", 1)]
WRONG: dict[str, Callable[[Any], Any]] = {
    r"timers that handle_batch returned are 1, and there are 2 keys": lambda state: Handled(
        None, state, pa.array([1])
    ),
    r"timers .* are timestamp\[ms\], and not milliseconds": lambda state: Handled(
        None, state, pa.nulls(2, pa.timestamp("ms"))
    ),
    r"timers .* are list<item: timestamp\[us\]>, and not milliseconds": lambda state: Handled(
        None, state, pa.nulls(2, pa.list_(pa.timestamp("us")))
    ),
    r"timers .* are double, and not milliseconds": lambda state: Handled(
        None, state, pa.array([1.0, 2.0])
    ),
    r"append .* 'two' as list<.*text.*>, which is declared .*s: string": lambda state: Handled(
        None, state, append=pa.table({"two": [[{"n": 1, "text": "x"}], None]})
    ),
    r"append .* 'two' as list<.*more.*>, which is declared": lambda state: Handled(
        None, state, append=pa.table({"two": [[{"n": 1, "s": "x", "more": 2}], None]})
    ),
    r"timers .* are string, and not milliseconds": lambda state: Handled(
        None, state, pa.array(["soon", "later"])
    ),
    r"timers .* are no pyarrow.Array, but list": lambda state: Handled(None, state, [1, 2]),
    r"timers .* have a null in a list": lambda state: Handled(
        None, state, pa.array([[1, None], None], pa.list_(pa.int64()))
    ),
    r"append .* columns \['three'\], and declared are \['one', 'two'\]": lambda state: Handled(
        None, state, append=pa.table({"three": [[1], [2]]})
    ),
    r"append .* 1 rows": lambda state: Handled(None, state, append=pa.table({"one": [[1]]})),
    r"append .* 'one' as list<.*string>, which is declared": lambda state: Handled(
        None, state, append=pa.table({"one": [["x"], ["y"]]})
    ),
    r"state .* declared are \['n', 'one', 'two'\]": lambda _: Handled(
        None, pa.table({"one": [[1], [2]]})
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_named(message: str) -> None:
    with pytest.raises(UnsupportedType, match=message):
        in_arrow(lambda _keys, _rows, state: WRONG[message](state)).batch(TWO_KEYS)


def test_timers_need_a_time_mode_that_has_them() -> None:
    operator = in_arrow(
        lambda _keys, _rows, state: Handled(None, state, pa.array([None, 5])), time_mode="none"
    )
    with pytest.raises(PySparkRuntimeError, match="INVALID_TIME_MODE"):
        operator.batch(TWO_KEYS)


def test_a_list_has_a_name_of_its_own() -> None:
    class Twice(Given):
        list_schemas: ClassVar = {"n": "n long"}

    with pytest.raises(ConfigError, match=r"Twice has \['n'\] in its state_schema and"):
        Operator(Twice(lambda: None), INPUT, "id string", flavour="arrow")


def test_lists_are_appended_to_and_replaced() -> None:
    seen: list[Any] = []

    def make(keys: Any, rows: Any, state: Any) -> Any:
        seen.append([state[name].to_pylist() for name in ("one", "two")])
        pairs = pa.StructArray.from_arrays([rows["n"], pc.cast(rows["n"], "string")], ["n", "s"])
        two = pa.ListArray.from_arrays(rows.offsets.cast("int32"), pairs)
        if len(seen) == 3:
            # Null and empty lists, what was there goes; and something behind it.
            replaced = {"n": state["n"], "two": pa.nulls(2, two.type), "one": [[7], []]}
            return Handled(None, pa.table(replaced), append=pa.table({"one": [[8], None]}))
        return Handled(None, state, append=pa.table({"two": two, "one": rows_of(rows)}))

    operator = in_arrow(make)
    for n in range(5):
        operator.batch([("a", n), ("b", 10), ("a", n)], processor=Given(make))
    first, second, third, fourth, fifth = seen
    assert first == [[None, None], [None, None]]
    assert second == [[[0, 0], [10]], [[{"n": 0, "s": "0"}] * 2, [{"n": 10, "s": "10"}]]]
    assert third[0] == [[0, 0, 1, 1], [10, 10]]
    assert fourth == [[[7, 8], None], [None, None]]
    assert fifth[0] == [[7, 8, 3, 3], [10]]


def rows_of(rows: clonos.GroupedRows) -> pa.Array:
    return rows.aggregate(n=("n", "list"))["n"]


def test_elements_end_with_their_ttl() -> None:
    class Passing(Given):
        ttl_ms = 1_000

    seen: list[Any] = []

    def make(keys: Any, rows: Any, state: Any) -> Any:
        seen.append(state["one"].to_pylist())
        return Handled(None, state, append=pa.table({"one": rows_of(rows)}))

    operator = Operator(Passing(make), INPUT, "id string", flavour="arrow", time_mode=TIME)
    for now in (1_000, 1_600, 2_100, 9_000):
        operator.batch([("a", now)], now=now, processor=Passing(make))
    assert seen == [[None], [[1_000]], [[1_600]], [None]]


def test_lists_that_are_returned_as_they_were_go_on_to_age() -> None:
    class Passing(Given):
        ttl_ms = 1_000

    seen: list[Any] = []

    def make(keys: Any, rows: Any, state: Any) -> Any:
        seen.append(dict(zip(keys["id"].to_pylist(), state["one"].to_pylist(), strict=True)))
        lists = rows_of(rows) if len(seen) == 1 else state["one"]
        changed = [
            [7] if key.as_py() == "b" and len(seen) == 2 else lists[at].as_py()
            for at, key in enumerate(keys["id"])
        ]
        one = pa.array(changed, pa.list_(pa.int64()))
        return None, pa.table({"n": state["n"], "one": one})

    operator = Operator(Passing(make), INPUT, "id string", flavour="arrow", time_mode=TIME)
    for now in (1_000, 1_500, 2_100):
        operator.batch([("a", 1), ("b", 2)], now=now, processor=Passing(make))
    assert seen == [{"a": None, "b": None}, {"a": [1], "b": [2]}, {"a": None, "b": [7]}]


def test_timers_see_what_their_batch_left_and_keys_without_rows() -> None:
    calls: list[Any] = []

    def make(keys: Any, rows: Any, state: Any) -> Any:
        n = rows.aggregate(n=("n", "max"))["n"]
        both = pa.table({"one": rows_of(rows)})
        return Handled(None, pa.record_batch([n], ["n"]), pc.add(n, rows.now_ms), both)

    def on_timer(keys: Any, timers: Any, state: Any) -> Any:
        calls.append([keys["id"].to_pylist(), timers["expiry_ms"].to_pylist(), state.to_pylist()])
        return keys, pa.record_batch([pa.nulls(len(keys), pa.int64())], ["n"])

    operator = in_arrow(make)

    def run(rows: Any, now: int) -> Any:
        return operator.batch(rows, now=now, processor=Given(make, on_timer))

    assert run([("late", 900), ("b", 0), ("never", 10_000)], 1_000) == [{"id": "b"}]
    assert calls.pop() == [["b"], [1_000], [{"n": 0, "one": [0], "two": None}]]
    # One with rows, and one that only has a timer.
    assert sorted(row["id"] for row in run([("b", -5)], 2_000)) == ["b", "late"]
    keys, expiries, states = calls.pop()
    assert dict(zip(keys, zip(expiries, states, strict=True), strict=True)) == {
        "b": (1_995, {"n": -5, "one": [0, -5], "two": None}),
        "late": (1_900, {"n": 900, "one": [900], "two": None}),
    }
    assert run([], 3_000) == []
    assert not calls


def test_a_timer_that_is_returned_as_it_fires_is_lost_and_others_stay() -> None:
    fired: list[Any] = []

    def make(keys: Any, rows: Any, state: Any) -> Any:
        return Handled(None, state, pa.array([[1_000, 1_500, 2_500]]))

    def on_timer(keys: Any, timers: Any, state: Any) -> Any:
        fired.append((timers["expiry_ms"].to_pylist(), timers.timers.to_pylist()))
        return Handled(None, state, pa.array([[1_000, 2_500, 2_500, 2_000]]))

    operator = in_arrow(make)
    operator.batch([("a", 1)], processor=Given(make, on_timer))
    for now in (1_200, 3_000, 4_000):
        operator.batch([], now=now, processor=Given(make, on_timer))
    # The one of 1,000 is a new one when those of 2,000 and 2,500 have fired.
    assert fired == [([1_000], [[1_500, 2_500]]), ([2_000, 2_500], [None]), ([1_000], [None])]


def test_without_handle_timers_they_pass() -> None:
    class Registers(clonos.BatchProcessor):
        state_schema = "n long"

        def handle_batch(self, keys: Any, rows: Any, state: Any) -> Any:
            assert rows.timers.to_pylist() == [None]
            return Handled(None, state, pa.array([rows.now_ms]))

    operator = Operator(Registers(), INPUT, "id string", flavour="arrow", time_mode=TIME)
    assert [operator.batch([("a", 1)]) for _ in range(2)] == [[], []]


def test_many_keys_at_once() -> None:
    count = 5_000

    def make(keys: Any, rows: Any, state: Any) -> Any:
        return Handled(None, state, pc.add(rows["n"], 2_000), pa.table({"one": rows_of(rows)}))

    found: list[Any] = []

    def on_timer(keys: Any, timers: Any, state: Any) -> Any:
        found.extend(zip(keys["id"].to_pylist(), state["one"].to_pylist(), strict=True))
        return None, state

    operator = in_arrow(make)
    rows = [(f"k{n}", n) for n in np.random.default_rng(1).permutation(count).tolist()]
    operator.batch(rows, processor=Given(make, on_timer))
    for now in (2_999, 4_000, 10_000):
        operator.batch([], now=now, processor=Given(make, on_timer))
    assert sorted(found) == sorted((f"k{n}", [n]) for n in range(count))
