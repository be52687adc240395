"""State variables, timers and the handle: what comes back, what fails, and how."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterator
from typing import Any

import keyed
import numpy as np
import pandas as pd
import pytest
from keyed import Operator
from pyspark.errors import PySparkRuntimeError, PySparkValueError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import LongType, StructField, StructType

INPUT, OUTPUT = "id string, n long", "id string, what string"


@pytest.fixture(autouse=True, params=[None, 0], ids=["loaded", "in pieces"])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists and maps are loaded with their keys, or one entry of each."""
    monkeypatch.setattr(keyed, "PART_BYTES", request.param)


Body = Callable[[Any, int], Any]


class Scripted(StatefulProcessor):
    """Declares what it is told, and runs `body` for each row; what that returns is output."""

    def __init__(self, declare: Callable[[Any, Any], None], body: Body) -> None:
        self.declare, self.body = declare, body

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.declare(self, handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.times = timerValues
        for row in rows:
            yield Row(id=key[0], what=repr(self.body(self, row.n)))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        self.times = timerValues
        yield Row(id=key[0], what=f"timer {expiredTimerInfo.getExpiryTimeInMs()}")
        self.body(self, -1)


def nothing(_self: Any, _handle: Any) -> None:
    pass


def operator(declare: Any, body: Any = lambda _self, _n: None, mode: str = "none") -> Operator:
    return Operator(Scripted(declare, body), INPUT, OUTPUT, time_mode=mode)


def said(found: list[dict[str, Any]]) -> list[str]:
    return [row["what"] for row in found]


def one_value(schema: str | StructType) -> Callable[[Any, Any], None]:
    return lambda self, handle: setattr(self, "v", handle.getValueState("v", schema))


def written_and_read(schema: str, value: Any) -> tuple[Any, Any]:
    """What is read of a value at once, and in the next epoch."""

    def body(self: Any, n: int) -> Any:
        if n:
            self.v.update(value)
        return self.v.get()

    op = operator(one_value(schema), body)
    first, then = [eval(said(op.batch([("a", n)]))[0]) for n in (1, 0)]
    return first, then


ZONED = dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        # As observed of Spark's own operator.
        ("n long", (5,), (5,)),
        ("n long", [5], (5,)),
        ("n long", Row(n=5), (5,)),
        ("n long", (np.int64(5),), (5,)),
        ("n long", (np.int8(5),), (5,)),
        ("n long", (None,), (None,)),
        ("n long", (1.0,), (None,)),
        ("n long", (True,), (None,)),
        ("n long", ("x",), (None,)),
        ("n long", (2**70,), (None,)),
        ("n long", (-(2**63),), (-(2**63),)),
        ("n int", (2**40 + 5,), (5,)),
        ("x double", (3,), (None,)),
        ("x double", (np.float32(1.5),), (1.5,)),
        ("s string", (5,), ("5",)),
        ("b boolean", (1,), (None,)),
        ("d date", (dt.datetime(2024, 1, 2, 4),), (dt.date(2024, 1, 2),)),
        ("at timestamp", (dt.datetime(2024, 1, 1, 12),), (dt.datetime(2024, 1, 1, 12),)),
        ("d decimal", (decimal.Decimal("1.239"),), (decimal.Decimal("1.24"),)),
        ("d decimal", (1.5,), (None,)),
        ("b binary", (bytearray(b"q"),), (b"q",)),
        ("l longs", ((1, None),), ([1, None],)),
        ("l longs", ([1.5],), ([None],)),
        ("l longs", (None,), (None,)),
        ("n long, s string", (None, None), (None, None)),
    ],
)
def test_a_value_comes_back_as_from_spark(schema: str, value: Any, expected: Any) -> None:
    names = {"Decimal": decimal.Decimal, "datetime": dt}
    globals().update(names)
    for found in written_and_read(schema, value):
        assert found == expected
        assert list(map(type, found)) == list(map(type, expected))


def test_timestamps_of_pandas_and_of_other_zones_come_back_as_local_ones() -> None:
    globals()["datetime"] = dt
    local = ZONED.astimezone().replace(tzinfo=None)
    assert written_and_read("at timestamp", (ZONED,)) == ((local,), (local,))
    plain = dt.datetime(2024, 1, 1)
    assert written_and_read("at timestamp", (pd.Timestamp(plain),)) == ((plain,), (plain,))


@pytest.mark.parametrize("value", [None, 5, (1, 2)])
def test_what_is_no_tuple_of_the_schema_is_refused(value: Any) -> None:
    op = operator(one_value("n long"), lambda self, _n: self.v.update(value))
    with pytest.raises((TypeError, PySparkRuntimeError)):
        op.batch([("a", 1)])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (LongType(), None),
        (LongType(), "1"),
        (StructType([StructField("n", LongType(), False)]), (None,)),
    ],
)
def test_nothing_where_something_is_declared_is_refused_when_it_is_written(
    field: Any, value: Any
) -> None:
    schema = StructType([StructField("m", LongType()), StructField("n", field, nullable=False)])

    def body(self: Any, _n: int) -> str:
        with pytest.raises(PySparkValueError, match="must not be None") as raised:
            self.v.update((None, value))
        return raised.value.__notes__[0]

    op = operator(one_value(schema), body)
    (note,) = said(op.batch([("a", 1)]))
    assert "written to state v of struct<m:bigint,n:" in note


def test_what_was_given_out_can_be_changed_without_changing_state() -> None:
    def body(self: Any, n: int) -> Any:
        mine = [n]
        if self.v.get() is None:
            self.v.update((mine,))
        mine.append(7)
        self.v.get()[0].append(8)
        return self.v.get()

    op = operator(one_value("l longs"), body)
    assert said(op.batch([("a", 1), ("a", 2)])) == ["([1],)"] * 2
    assert said(op.batch([("a", 3)])) == ["([1],)"]


def test_the_objects_are_of_sparks_classes() -> None:
    def declare(self: Any, handle: Any) -> None:
        assert isinstance(handle, StatefulProcessorHandle)
        self.v = handle.getValueState("v", "n long")
        self.l = handle.getListState("l", "n long")
        self.m = handle.getMapState("m", "k long", "n long, s string")
        assert isinstance(self.v, ValueState)
        assert isinstance(self.l, ListState)
        assert isinstance(self.m, MapState)

    def body(self: Any, _n: int) -> Any:
        assert isinstance(self.times, TimerValues)
        self.m.updateValue((1,), (2, "x"))
        found = self.m.getValue((1,))
        pairs = list(self.m.iterator()), list(self.m.keys()), list(self.m.values())
        return found, type(found) is not tuple and found.s, pairs, self.m.getValue((7,))

    expected = "(Row(n=2, s='x'), 'x', ([((1,), (2, 'x'))], [(1,)], [(2, 'x')]), None)"
    assert said(operator(declare, body).batch([("a", 1)])) == [expected]


def test_a_list_is_empty_or_there() -> None:
    def declare(self: Any, handle: Any) -> None:
        self.l = handle.getListState("l", "n long")

    def body(self: Any, n: int) -> Any:
        for name in ("put", "appendList"):
            with pytest.raises(PySparkRuntimeError, match=r"EMPTY_LIST_VALUE.*StateName l"):
                getattr(self.l, name)([])
        before = list(self.l.get()), self.l.exists()
        if n == 9:
            self.l.clear()
        self.l.appendList([(n,), (n + 1,)])
        elements = self.l.get()
        first = next(elements)
        # An iterator goes on with what there was.
        self.l.put([(0,)])
        return before, first, list(elements), list(self.l.get())

    op = operator(declare, body)
    assert said(op.batch([("a", 1)])) == ["(([], False), (1,), [(2,)], [(0,)])"]
    assert said(op.batch([("a", 5)])) == ["(([(0,)], True), (0,), [(5,), (6,)], [(0,)])"]
    assert said(op.batch([("a", 9)])) == ["(([(0,)], True), (9,), [(10,)], [(0,)])"]


def test_a_map_takes_keys_that_python_cannot_hash_and_nans() -> None:
    def declare(self: Any, handle: Any) -> None:
        self.m = handle.getMapState("m", "l longs, x double", "n long")

    def body(self: Any, n: int) -> Any:
        for user in (([1, 2], 1.5), ([1], float("nan")), (None, None)):
            before = self.m.getValue(user)
            self.m.updateValue(user, ((before.n if before else 0) + n,))
        self.m.removeKey((None, None))
        return len(list(self.m.keys())), sorted(self.m.values()), self.m.containsKey(([1, 2], 1.5))

    op = operator(declare, body)
    assert said(op.batch([("a", 1)])) == ["(2, [(1,), (1,)], True)"]
    assert said(op.batch([("a", 2)])) == ["(2, [(3,), (3,)], True)"]


def test_keys_are_told_apart_and_nulls_are_equal() -> None:
    def body(self: Any, n: int) -> Any:
        self.v.update(((self.v.get() or (0,))[0] + n,))
        return self.v.get()[0]

    processor = Scripted(one_value("n long"), body)
    op = Operator(processor, "id string, k double, n long", OUTPUT, keys=2)
    rows = [(None, None, 1), (None, None, 1), ("a", 0.0, 1), ("a", -0.0, 1), ("a", None, 1)]
    nan = float("nan")
    for times in (1, 2):
        found = op.batch([*rows, ("b", nan, 1), ("b", -nan, 1)])
        most: dict[Any, int] = {}
        for row in found:
            most[row["id"]] = max(most.get(row["id"], 0), int(row["what"]))
        assert most == {None: 2 * times, "a": 2 * times, "b": 2 * times}


INVALID_STATE = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE"
INVALID_MODE = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE"
TWICE = "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED"


def refuses(op: Callable[[], Any], doing: str, condition: str, *parts: str) -> None:
    with pytest.raises(PySparkRuntimeError) as caught:
        op()
    start = f"Error {doing}: [{condition}]" if condition.isupper() else f"Error {doing}: "
    message = str(caught.value)
    assert message.startswith(start)
    assert all(part in message for part in (condition, *parts))


@pytest.mark.parametrize(
    ("declare", "mode", "error"),
    [
        (
            lambda _s, h: h.getValueState("v", "n long", 100),
            "none",
            [
                "initializing value state",
                "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL",
                "Cannot use TTL for state=v in timeMode=NoTime, use TimeMode.ProcessingTime() ins",
            ],
        ),
        (
            lambda _s, h: h.getMapState("v", "k long", "n long", 5),
            "eventTime",
            [
                "initializing map state",
                "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL",
                "timeMode=EventTime",
            ],
        ),
        (
            lambda _s, h: h.getListState("v", "n long", -5),
            "processingTime",
            [
                "initializing list state",
                "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE",
                "must be greater than zero for State store operation=update on state=v.",
            ],
        ),
        (
            lambda _s, h: [h.getValueState("v", "n long") for _ in range(2)],
            "none",
            ["initializing value state", "Value state v already exists"],
        ),
        (
            lambda _s, h: (h.getValueState("v", "n long"), h.getListState("v", "n long")),
            "none",
            ["initializing list state", TWICE, "State variable with name v has already been"],
        ),
        (
            lambda _s, h: h.registerTimer(5),
            "processingTime",
            ["register timer", INVALID_STATE, "operation=register_timer with invalid handle"],
        ),
        (
            lambda _s, h: h.deleteTimer(5),
            "none",
            ["deleting timer", INVALID_MODE, "delete_timer with invalid timeMode=NoTime"],
        ),
        (
            lambda _s, h: h.getValueState("v", "n long").get(),
            "none",
            ["getting value state", "INTERNAL_ERROR_TWS", "store for stateName=v SQLSTATE: XX000"],
        ),
        (
            lambda _s, h: h.getValueState("$v", "n long"),
            "none",
            [
                "initializing value state",
                "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS",
            ],
        ),
        (
            lambda _s, h: h.getValueState("", "n long"),
            "none",
            ["initializing value state", "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"],
        ),
    ],
)
def test_init_is_refused_in_sparks_words(declare: Any, mode: str, error: list[str]) -> None:
    refuses(lambda: operator(declare, mode=mode), *error)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            lambda s, _n: s.handle.getValueState("w", "n long"),
            ["initializing value state", "not on the driver"],
        ),
        (
            lambda s, _n: s.handle.getValueState("v", "n long"),
            ["initializing value state", "Value state v already exists"],
        ),
        (
            lambda s, _n: s.handle.deleteIfExists("v"),
            ["deleting state", INVALID_STATE, "=delete_if_exists with", "state=INITIALIZED"],
        ),
        (lambda s, _n: s.handle.registerTimer(5), ["register timer", INVALID_MODE]),
        (lambda s, _n: list(s.handle.listTimers()), ["listing timers", INVALID_MODE]),
    ],
)
def test_the_handle_is_refused_in_sparks_words(body: Any, error: list[str]) -> None:
    op = operator(one_value("n long"), body)
    refuses(lambda: op.batch([("a", 1)]), *error)


def test_no_ttl_is_0() -> None:
    operator(lambda _s, h: h.getValueState("v", "n long", 0)).batch([("a", 1)])


def test_a_deleted_variable_is_gone() -> None:
    def declare(self: Any, handle: Any) -> None:
        self.v = handle.getValueState("v", "n long")
        handle.deleteIfExists("v")
        handle.deleteIfExists("none")

    op = operator(declare, lambda self, _n: self.v.get())
    with pytest.raises(
        PySparkRuntimeError, match="Error getting value state: Value state v is not"
    ):
        op.batch([("a", 1)])


def test_no_state_is_left_to_close() -> None:
    class Closing(Scripted):
        def close(self) -> None:
            if hasattr(self, "times"):
                self.v.get()

    op = Operator(Closing(one_value("n long"), lambda s, _n: s.v.update((1,))), INPUT, OUTPUT)
    with pytest.raises(PySparkRuntimeError, match="Implicit key not found"):
        op.batch([("a", 1)])


def ttl_of(ttl: int) -> Callable[[Any, Any], None]:
    def declare(self: Any, handle: Any) -> None:
        self.v = handle.getValueState("v", "n long", ttl)
        self.l = handle.getListState("l", "n long", ttl)
        self.m = handle.getMapState("m", "k long", "n long", ttl)

    return declare


def test_what_is_older_than_its_ttl_is_gone_element_by_element() -> None:
    def body(self: Any, n: int) -> Any:
        before = self.v.get(), list(self.l.get()), sorted(self.m.iterator())
        if n:
            self.v.update((n,))
            self.l.appendValue((n,))
            self.m.updateValue((n,), (n,))
        return before

    op = operator(ttl_of(100), body, "processingTime")
    assert said(op.batch([("a", 1)], now=1_000)) == ["(None, [], [])"]
    assert said(op.batch([("a", 2)], now=1_050)) == ["((1,), [(1,)], [((1,), (1,))])"]
    assert said(op.batch([("a", 0)], now=1_099)) == [
        "((2,), [(1,), (2,)], [((1,), (1,)), ((2,), (2,))])"
    ]
    assert said(op.batch([("a", 0)], now=1_100)) == ["((2,), [(2,)], [((2,), (2,))])"]
    assert said(op.batch([("a", 0)], now=1_149)) == ["((2,), [(2,)], [((2,), (2,))])"]
    assert said(op.batch([("a", 0)], now=1_150)) == ["(None, [], [])"]


def test_timers_fire_once_by_expiry_across_keys() -> None:
    def body(self: Any, n: int) -> Any:
        if n >= 0:
            self.handle.registerTimer(n)
        return list(self.handle.listTimers())

    op = operator(nothing, body, "processingTime")
    rows = [("a", 3_000), ("b", 2_000), ("a", 900), ("b", 1_000), ("b", 1_001)]
    found = op.batch(rows, now=1_000)
    assert [row for row in found if row["what"].startswith("timer")] == [
        {"id": "a", "what": "timer 900"},
        {"id": "b", "what": "timer 1000"},
    ]
    # Without rows, and keys whose turn it was long ago.
    assert op.batch([], now=5_000) == [
        {"id": "b", "what": "timer 1001"},
        {"id": "b", "what": "timer 2000"},
        {"id": "a", "what": "timer 3000"},
    ]
    assert op.batch([], now=9_000) == []


def test_a_timer_that_its_handler_registers_again_is_lost_as_in_spark() -> None:
    def body(self: Any, n: int) -> Any:
        self.handle.registerTimer(500)
        if n == -1:
            # Due, too, and not before the next batch.
            self.handle.registerTimer(600)

    op = operator(nothing, body, "processingTime")
    assert said(op.batch([("a", 1)], now=1_000)) == ["None", "timer 500"]
    assert said(op.batch([], now=1_001)) == ["timer 600"]


def test_times_are_told_by_mode() -> None:
    def body(self: Any, _n: int) -> Any:
        return self.times.getCurrentProcessingTimeInMs(), self.times.getCurrentWatermarkInMs()

    for mode, expected in (
        ("none", "(-1, -1)"),
        ("processingTime", "(7, 3)"),
        ("eventTime", "(7, 3)"),
    ):
        op = operator(nothing, body, mode)
        assert said(op.batch([("a", 1)], now=7, watermark=3)) == [expected]
