"""`_core.StateTask`: keyed state of one task, in this process and at an agent."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from clonos import _core
from clonos.errors import ClonosError
from local_agent import open_task

PUT, DELETE, CLEAR = 0, 1, 2
KEYS = pa.schema([("user", pa.string())])
NUMBER = pa.schema([("n", pa.int64())])
VARIABLES = [
    ("sum", "value", None, NUMBER, 0),
    ("last", "list", None, NUMBER, 0),
    ("words", "map", pa.schema([("word", pa.string())]), NUMBER, 0),
]
Opened = Callable[[int], _core.StateTask]


def rows(values: list[Any], schema: pa.Schema) -> pa.Array:
    return pa.array(values, pa.struct(list(schema)))


def ops(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.uint8())


def keys(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int32())


def opened(epoch: int | str, **changes: Any) -> _core.StateTask:
    arguments: dict[str, Any] = {
        "query": "orders",
        "operator": "count",
        "epoch": epoch,
        "partition": 0,
        "partitions": 1,
        "keys": KEYS,
        "variables": VARIABLES,
    }
    return _core.StateTask.open(changes.pop("task", None), **{**arguments, **changes})


def count(task: _core.StateTask, users: list[str]) -> dict[str, list[int]]:
    """Add up how often each user came; what was there before, of each."""
    batch = pa.record_batch({"user": users})
    _, offsets, distinct = task.group([batch], [0])
    task.load()
    numbers, _, values = task.values(0)
    names = distinct.column(0).to_pylist()
    before = {
        names[key]: value["n"]
        for key, value in zip(numbers.to_pylist(), values.to_pylist(), strict=True)
    }
    sums = [
        {"n": before.get(name, 0) + offsets[at + 1] - offsets[at]} for at, name in enumerate(names)
    ]
    every = keys(*range(len(names)))
    task.write(0, every, ops(*[PUT] * len(names)), values=rows(sums, NUMBER))
    task.write(1, every, ops(*[PUT] * len(names)), values=rows(sums, NUMBER))
    task.write_timers(
        every, ops(*[PUT] * len(names)), pa.array([row["n"] for row in sums], pa.int64())
    )
    lists: dict[str, list[int]] = {name: [] for name in names}
    listed, _, elements = task.values(1)
    for key, element in zip(listed.to_pylist(), elements.to_pylist(), strict=True):
        lists[names[key]].append(element["n"])
    return lists


def test_a_task_reads_what_the_epoch_before_it_wrote() -> None:
    local = _core.LocalState(7_000, 6_000, 5_000)
    task = opened(0, local=local)
    assert (task.version, task.now_ms, task.watermark_ms, task.late_ms) == (
        None,
        7_000,
        6_000,
        5_000,
    )
    assert count(task, ["a", "b", "a"]) == {"a": [], "b": []}
    fingerprint = task.commit()
    again = opened(0, local=local)
    count(again, ["a", "b", "a"])
    assert again.commit() == fingerprint
    local.commit("orders", "count", 0)
    local.set_clock(8_000)
    task = opened(1, local=local)
    assert (task.version, task.now_ms, task.watermark_ms) == (0, 8_000, -1)
    assert count(task, ["a", "c"]) == {"a": [2], "c": []}
    numbers, expiries = task.due(2)
    assert expiries.to_pylist() == [1, 2]
    known = task.keys().column(0).to_pylist()
    assert [known[number] for number in numbers.to_pylist()] == ["b", "a"]
    task.commit()
    local.commit("orders", "count", 1)
    assert local.version("orders", "count") == 1


def test_a_variable_that_was_deleted_is_empty_when_it_is_declared_again() -> None:
    local = _core.LocalState()
    programs: list[tuple[list[Any], list[str]]] = [
        (VARIABLES, []),
        (VARIABLES[1:], ["sum"]),
        (VARIABLES, []),
        # Deleted and declared by one program: a new one each time.
        (VARIABLES, ["sum"]),
    ]
    found = []
    for epoch, (variables, deleted) in enumerate(programs):
        task = opened(epoch, local=local, variables=variables, deleted=deleted)
        task.group([pa.record_batch({"user": ["a"]})], [0])
        task.load()
        at = [name for name, *_ in variables].index("sum") if variables == VARIABLES else None
        if at is not None:
            found.append(task.values(at)[2].to_pylist())
            task.write(at, keys(0), ops(PUT), values=rows([{"n": epoch}], NUMBER))
        task.commit()
        local.commit("orders", "count", epoch)
    assert found == [[], [], []]


def test_maps_are_changed_key_by_key() -> None:
    local = _core.LocalState()
    task = opened(0, local=local)
    task.group([pa.record_batch({"user": ["a"]})], [0])
    words = rows([{"word": "x"}, {"word": "y"}, {"word": "x"}], VARIABLES[2][2] or NUMBER)
    task.write(2, keys(0, 0, 0), ops(PUT, PUT, DELETE), words, rows([{"n": 1}, {"n": 2}], NUMBER))
    task.commit()
    local.commit("orders", "count", 0)
    task = opened(1, local=local)
    task.group([pa.record_batch({"user": ["a"]})], [0])
    task.load()
    numbers, users, values = task.values(2)
    assert users is not None
    assert (numbers.to_pylist(), users.to_pylist(), values.to_pylist()) == (
        [0],
        [{"word": "y"}],
        [{"n": 2}],
    )
    task.write(2, keys(0), ops(CLEAR))
    task.commit()
    local.commit("orders", "count", 1)
    task = opened(2, local=local)
    task.group([pa.record_batch({"user": ["a"]})], [0])
    task.load()
    assert len(task.values(2)[2]) == 0


def test_values_of_every_type_come_back() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6)
    samples: list[tuple[pa.DataType, Any]] = [
        (pa.bool_(), True),
        (pa.int8(), -1),
        (pa.int16(), -2),
        (pa.int32(), -3),
        (pa.int64(), -4),
        (pa.float32(), 0.5),
        (pa.float64(), 0.1),
        (pa.decimal128(38, 4), decimal.Decimal("-12.3456")),
        (pa.string(), "é"),
        (pa.large_string(), "é" * 99),
        (pa.string_view(), "é" * 9),
        (pa.binary(), b"\0\xff"),
        (pa.large_binary(), b""),
        (pa.binary_view(), b"x" * 20),
        (pa.date32(), dt.date(1969, 12, 31)),
        (pa.timestamp("us"), moment),
        (pa.timestamp("us", "UTC"), moment.replace(tzinfo=dt.UTC)),
        (pa.duration("us"), dt.timedelta(days=-1, microseconds=3)),
        (pa.null(), None),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": None, "b": "x"}),
        (pa.list_(pa.struct([("a", pa.int64())])), [{"a": 1}, None, {"a": None}]),
        (pa.map_(pa.string(), pa.list_(pa.int32())), [("k", [1, None]), ("l", None)]),
    ]
    schema = pa.schema([(f"c{at}", kind) for at, (kind, _) in enumerate(samples)])
    full = {f"c{at}": value for at, (_, value) in enumerate(samples)}
    none = dict.fromkeys(full)
    variables = [("all", "list", None, schema, 0)]
    local = _core.LocalState()
    task = opened(0, variables=variables, local=local)
    task.group([pa.record_batch({"user": ["a"]})], [0])
    task.write(0, keys(0, 0), ops(PUT, PUT), values=rows([full, none], schema))
    task.commit()
    local.commit("orders", "count", 0)
    task = opened(1, variables=variables, local=local)
    task.group([pa.record_batch({"user": ["a"]})], [0])
    task.load()
    values = task.values(0)[2]
    assert values.type == pa.struct(list(schema))
    assert values.to_pylist() == [full, none]


def test_a_schema_that_does_not_follow_is_refused_by_name() -> None:
    local = _core.LocalState()
    opened(0, local=local).commit()
    local.commit("orders", "count", 0)
    text = pa.schema([("n", pa.string())])
    as_spark = r"\[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION\] "
    with pytest.raises(ClonosError, match=f'"sum": {as_spark}field "n" was kept') as raised:
        opened(1, variables=[("sum", "value", None, text, 0)], local=local)
    assert raised.value.condition == "STATE_SCHEMA_CHANGED"
    as_spark = r"\[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE\] "
    with pytest.raises(ClonosError, match=f"{as_spark}it was a value and is a list now"):
        opened(1, variables=[("sum", "list", None, NUMBER, 0)], local=local)
    with pytest.raises(ClonosError, match="the grouping key"):
        opened(1, keys=pa.schema([("user", pa.int64())]), local=local)


def test_the_state_of_a_batch_query_ends_with_its_task() -> None:
    task = opened("execution-1")
    assert (task.version, task.watermark_ms) == (None, -1)
    assert task.now_ms > 1_700_000_000_000
    assert count(task, ["a"]) == {"a": []}
    task.commit()
    assert count(opened("execution-1"), ["a"]) == {"a": []}


def test_at_an_agent_each_epoch_reads_what_was_committed(config: _core.SessionConfig) -> None:
    client = _core.Client.connect(config, config.driver_socket)

    def run(epoch: int, users: list[str]) -> tuple[int | None, dict[str, list[int]]]:
        task = open_task(
            config,
            _core.ServiceTask,
            "count",
            client,
            query="orders",
            epoch=epoch,
            stage=epoch,
            token=1,
            named=True,
        )
        state = opened(epoch, task=task)
        found = count(state, users)
        state.commit()
        task.publish()
        task.finish()
        return state.version, found

    many = [f"user-{number}" for number in range(50_000)]
    assert run(0, ["a", "b", "a"]) == (None, {"a": [], "b": []})
    assert run(1, ["b", *many])[0] == 0
    version, found = run(2, ["a", "b", *many])
    assert version == 1
    assert found == {"a": [2], "b": [1, 2], **{user: [1] for user in many}}
