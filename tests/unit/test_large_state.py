"""Lists and maps of which no more than the beginning is loaded with their key."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from keyed import Operator
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from clonos import _core
from clonos._state import map_state

PART_BYTES = 200
MANY = 500
INPUT, OUTPUT = "id string, n long", "id string, what string"


class Run(StatefulProcessor):
    """Has a list and a map, and does with them what it is told for each batch."""

    def __init__(self, bodies: list[Callable[[Any, Any], Any]]) -> None:
        self.bodies = bodies

    def init(self, handle: Any) -> None:
        self.log = handle.getListState("log", "n long")
        self.pairs = handle.getMapState("pairs", "user string", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (row,) = rows
        yield Row(id=key[0], what=repr(self.bodies[row.n](self.log, self.pairs)))


def said(*bodies: Callable[[Any, Any], Any], part_bytes: int | None = PART_BYTES) -> list[str]:
    """What the processor says in batches one after the other, of two keys with the same state."""
    operator = Operator(Run(list(bodies)), INPUT, OUTPUT)
    operator.part_bytes = part_bytes
    found = []
    for number in range(len(bodies)):
        rows = operator.batch([("a", number), ("b", number)])
        assert rows[0]["what"] == rows[1]["what"]
        found.append(rows[0]["what"])
    return found


def fill(log: Any, pairs: Any) -> None:
    log.appendList([(n,) for n in range(MANY)])
    for n in range(MANY):
        pairs.updateValue((str(n),), (n,))


def test_a_long_list_is_read_to_its_end_and_appended_to() -> None:
    def append(log: Any, _pairs: Any) -> Any:
        before = log.get()
        log.appendValue((-1,))
        return log.exists(), [n for (n,) in before], [n for (n,) in log.get()]

    def put(log: Any, _pairs: Any) -> Any:
        before = log.get()
        log.put([(7,)])
        return [n for (n,) in before], [n for (n,) in log.get()]

    numbers = [*range(MANY)]
    assert said(fill, append, put, append)[1:] == [
        repr((True, numbers, [*numbers, -1])),
        repr(([*numbers, -1], [7])),
        repr((True, [7], [7, -1])),
    ]


def test_an_iterator_that_is_kept_goes_on_where_it_was() -> None:
    def some(log: Any, pairs: Any) -> Any:
        numbers, users = log.get(), pairs.keys()
        return [next(numbers) for _ in range(3)], len({next(users) for _ in range(300)})

    assert said(fill, some)[1] == repr(([(0,), (1,), (2,)], 300))


@pytest.mark.parametrize("lookups", [3, 10_000])
def test_pairs_of_a_large_map_are_looked_up(monkeypatch: pytest.MonkeyPatch, lookups: int) -> None:
    monkeypatch.setattr(map_state, "LOOKUPS", lookups)

    def look(_log: Any, pairs: Any) -> Any:
        wanted = [str(n) for n in range(-20, MANY + 20)]
        random.Random(7).shuffle(wanted)
        found = {n: pairs.getValue((n,)) for n in wanted}
        again = {n: pairs.getValue((n,)) for n in wanted if pairs.containsKey((n,))}
        assert again == {n: row for n, row in found.items() if row is not None}
        return sorted(int(n) for n in again) == sorted(row.n for row in again.values())

    def count(_log: Any, pairs: Any) -> int:
        return len(list(pairs.iterator()))

    assert said(fill, look, count)[1:] == ["True", str(MANY)]


def change(_log: Any, pairs: Any) -> Any:
    pairs.updateValue(("new",), (-1,))
    for n in range(0, MANY, 3):
        pairs.updateValue((str(n),), (-n,))
    for n in range(1, MANY, 3):
        pairs.removeKey((str(n),))
    seen = pairs.iterator()
    pairs.removeKey(("new",))
    pairs.removeKey(("never",))
    return list(seen), list(pairs.keys()), [n for (n,) in pairs.values()]


def empty(_log: Any, pairs: Any) -> Any:
    for user in list(pairs.keys()):
        pairs.removeKey(user)
    return pairs.exists(), list(pairs.keys()), pairs.getValue(("0",))


def test_a_large_map_is_as_a_small_one() -> None:
    def keys(log: Any, pairs: Any) -> Any:
        for n in range(0, MANY, 9):
            pairs.getValue((str(n),))
        return pairs.exists(), log.exists(), list(pairs.iterator())

    def clear(_log: Any, pairs: Any) -> Any:
        pairs.clear()
        pairs.updateValue(("x",), (1,))
        return list(pairs.iterator()), pairs.getValue(("3",)), pairs.exists()

    for bodies in ([fill, change, keys, clear, keys], [fill, empty, keys]):
        in_pieces, loaded = said(*bodies), said(*bodies, part_bytes=None)
        assert in_pieces == loaded
        assert "False" in in_pieces[-2] or len(in_pieces) == 5


def test_no_more_of_them_is_loaded_than_was_said() -> None:
    local = _core.LocalState()
    number = pa.schema([("n", pa.int64())])
    variables = [
        ("list", "list", None, number, 0),
        ("map", "map", pa.schema([("u", pa.string())]), number, 0),
    ]

    def task(epoch: int, part_bytes: int | None) -> _core.StateTask:
        opened = _core.StateTask.open(
            None,
            query="q",
            operator="op",
            epoch=epoch,
            partition=0,
            partitions=1,
            keys=pa.schema([("k", pa.string())]),
            variables=variables,
            local=local,
            part_bytes=part_bytes,
        )
        opened.group([pa.record_batch({"k": ["a"]})], [0])
        opened.load()
        return opened

    first = task(0, None)
    values = pa.array([{"n": n} for n in range(MANY)])
    users = pa.array([{"u": str(n)} for n in range(MANY)])
    for variable, of_user in ((0, None), (1, users)):
        zeros = pa.array([0] * MANY, pa.int32())
        first.write(variable, zeros, zeros.cast(pa.uint8()), of_user, values)
    first.commit()
    local.commit("q", "op", 0)
    whole, part = task(1, None), task(1, PART_BYTES)
    for variable in (0, 1):
        assert whole.cut(variable) == []
        assert part.cut(variable) == [0]
        assert part.cut(variable, 1) == []
        _, _, loaded = part.values(variable)
        assert 0 < len(loaded) < 20
        _, rest, begins = part.piece(variable, 0)
        assert begins is None
        assert loaded.to_pylist() + rest.to_pylist() == whole.values(variable)[2].to_pylist()
        with pytest.raises(Exception, match="is loaded"):
            whole.piece(variable, 0)
        with pytest.raises(Exception, match="another key"):
            part.piece(variable, 0, b"\0" * 40)
    assert part.lookup(1, 0, pa.array([{"u": "77"}])).to_pylist() == [{"n": 77}]
    assert part.lookup(1, 0, pa.array([{"u": "none"}])) is None
    _, _, at = task(1, 0).piece(1, 0)
    assert at is None
    with pytest.raises(Exception, match="not one of a map"):
        part.lookup(0, 0, pa.array([{"u": "77"}]))
