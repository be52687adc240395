"""Rows of a class whose fields are read in C behave as PySpark's own."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyed import Operator
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from clonos._state.garbage import collector_paused
from clonos._state.row_flavour import RowChunks
from clonos._state.tuples import row_factory
from clonos._worker.task_conf import TaskConf

# Names of what tuples and Rows have themselves, of no variable, of Python's own, and twice.
NAMES = (
    *("id", "a b", "", "class", "1", "_private", "__fields__", "__dunder__", "__class__", "ä"),
    *("count", "index", "asDict", "at0", "at1", "id"),
)


def plain_row(names: list[str], values: tuple[Any, ...]) -> Row:
    """Make a Row as PySpark does for its own operator."""
    row = Row(*values)
    row.__fields__ = list(names)  # type: ignore[attr-defined]
    return row


def outcome(do: Callable[[Any], Any], row: Any) -> Any:
    """What comes of it: what is returned, or raised; a bound method is known by its name."""
    try:
        found = do(row)
    except Exception as error:
        return type(error), str(error)
    return getattr(found, "__name__", found)


USES: list[Callable[[Any], Any]] = [
    repr,
    len,
    list,
    tuple,
    hash,
    lambda row: row.asDict(),
    lambda row: row.asDict(True),
    lambda row: row.__fields__,
    lambda row: row[0],
    lambda row: row[-1],
    lambda row: row[1:],
    lambda row: row[99],
    lambda row: row.count(1),
    lambda row: row.index(1),
    lambda row: row.missing,
    lambda row: row["missing"],
    lambda row: "missing" in row,
    lambda row: setattr(row, "id", 1),
    lambda row: row(*range(len(row))).asDict(),
    lambda row: row(*range(99)),
    lambda row: row.__add__((1,)),
    lambda row: row < (2,),
    *[lambda row, name=name: getattr(row, name) for name in NAMES if name != "__class__"],
    *[lambda row, name=name: row[name] for name in NAMES],
    *[lambda row, name=name: name in row for name in NAMES],
]

FIELDS = st.lists(
    st.tuples(
        st.sampled_from(NAMES) | st.text(max_size=3),
        st.none() | st.integers(0, 3) | st.just([1]) | st.just(Row(x=1)),
    ),
    min_size=1,
    max_size=6,
)


@given(FIELDS)
def test_they_behave_as_pysparks(fields: list[tuple[str, Any]]) -> None:
    names, values = [name for name, _ in fields], tuple(value for _, value in fields)
    ours, theirs = row_factory(names)(values), plain_row(names, values)
    assert isinstance(ours, Row)
    assert ours == theirs
    assert theirs == ours
    for use in USES:
        assert outcome(use, ours) == outcome(use, theirs)
    copies = [copy.copy, copy.deepcopy]
    copies += [lambda row, by=by: by.loads(by.dumps(row)) for by in (pickle, cloudpickle)]
    for make in copies:
        copied = make(ours)
        assert copied == theirs
        assert copied.asDict() == theirs.asDict()


def test_a_field_that_is_given_another_name_is_as_in_pyspark() -> None:
    ours, theirs = row_factory(["a", "b"])((1, 2)), plain_row(["a", "b"], (1, 2))
    for row in (ours, theirs):
        row.__fields__ = ["c", "d"]
        assert (row.c, row["d"], row.asDict()) == (1, 2, {"c": 1, "d": 2})
    # Others are not touched by that.
    assert row_factory(["a", "b"])((1, 2)).a == 1


def test_a_class_of_rows_is_whole_whenever_garbage_is_collected() -> None:
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            assert row_factory(["a", "b"])((1, 2)).b == 2
    finally:
        gc.set_threshold(*before)


def test_rows_of_a_batch_are_those_of_its_columns() -> None:
    columns = {"id": ["a", "b", None], "count": [1, 2, 3], "at": [1.5, None, 2.5]}
    batch = pa.record_batch(columns)
    chunks = RowChunks(batch, TaskConf())
    rows = list(chunks.iterator(0, 3))
    assert rows == list(zip(*columns.values(), strict=True))
    assert [row.at for row in rows] == columns["at"]


class Collecting(StatefulProcessor):
    """Says whether cycles are collected while it is at work."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Any, _times: Any) -> Any:
        enabled = {gc.isenabled() for _ in rows}
        self.seen.get()
        yield Row(id=key[0], enabled=enabled == {gc.isenabled()} == {True})


def test_cycles_of_the_users_are_collected_as_ever() -> None:
    operator = Operator(Collecting(), "id string, n long", "id string, enabled boolean")
    assert operator.batch([("a", n) for n in range(10)]) == [{"id": "a", "enabled": True}]
    assert gc.isenabled()


def fail_paused() -> None:
    with collector_paused():
        assert not gc.isenabled()
        raise LookupError


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was(enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(LookupError):
            fail_paused()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
