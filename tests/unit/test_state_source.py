"""Options of `clonos-state`, and how what is kept becomes columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from clonos._sources.state import RANGES, StateOptions, StateReader
from clonos.errors import ConfigError


def options(**given: str) -> StateOptions:
    return StateOptions.read({"path": "/saved", "stateVarName": "v", **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": ""}, "needs a path"),
        ({"readRegisteredTimers": "true"}, "not both"),
        ({"batchId": "last"}, "the number of a batch"),
        ({"numPartitions": "0"}, "a whole number from 1 on"),
        ({"flattenCollectionTypes": "yes"}, "'true' or 'false'"),
        ({"stateVar": "v"}, "did you mean 'stateVarName'"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(**given)


@pytest.mark.parametrize("count", [1, 3, 7, 256, 1_000])
def test_tasks_share_all_ranges_between_them(count: int) -> None:
    reader = StateReader(options(numPartitions=str(count)), 1, pa.schema([]), "value", ttl=False)
    pieces: list[Any] = list(reader.partitions())
    assert len(pieces) == min(count, RANGES)
    assert [r for p in pieces for r in range(p.first, p.last + 1)] == list(range(RANGES))


def columns(kind: str | None, flatten: str = "true", *, ttl: bool = False) -> list[Any]:
    """Columns of a key with two entries and one with a single one."""
    reader = StateReader(options(flattenCollectionTypes=flatten), 1, pa.schema([]), kind, ttl=ttl)
    keys = pa.array([{"id": "a"}, {"id": "b"}])
    users = pa.array([{"u": 1}, {"u": 2}, {"u": 1}]) if kind == "map" else None
    values = None if kind is None else pa.array([{"n": 7}, {"n": 8}, {"n": 9}])
    found = reader._columns(
        keys, pa.array([0, 2, 3], pa.int32()), users, values, pa.array([50, 0, 70])
    )
    return [column.to_pylist() for column in found]


def test_each_kind_has_its_columns() -> None:
    each = [{"id": "a"}, {"id": "a"}, {"id": "b"}]
    values = [{"n": 7}, {"n": 8}, {"n": 9}]
    assert columns("list") == [each, values]
    assert columns("list", "false") == [
        [{"id": "a"}, {"id": "b"}],
        [[{"n": 7}, {"n": 8}], [{"n": 9}]],
    ]
    assert columns("map") == [each, [{"u": 1}, {"u": 2}, {"u": 1}], values]
    assert columns("map", "false")[1][0] == [({"u": 1}, {"n": 7}), ({"u": 2}, {"n": 8})]
    assert columns(None) == [each, [50, 0, 70]]
    # What was written before the variable had a TTL has none.
    assert columns("value", ttl=True)[1] == [
        {"value": {"n": 7}, "ttlExpirationMs": 50},
        {"value": {"n": 8}, "ttlExpirationMs": None},
        {"value": {"n": 9}, "ttlExpirationMs": 70},
    ]
