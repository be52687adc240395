"""Processors in Arrow: as one of Rows that does the same; and errors that name what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keyed import Operator
from pyspark.sql import Row, types
from pyspark.sql.streaming import StatefulProcessor

import clonos
from clonos.errors import ConfigError, UnsupportedType

INPUT = "id string, n long, word string"
OUTPUT = "id string, rows long, total long, last string"


class Totals(StatefulProcessor):
    """Adds up numbers until a sum of zero, which forgets the key."""

    def init(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "total long, last string")

    def handleInputRows(self, key: Any, rows: Any, _times: Any) -> Iterator[Row]:
        rows = list(rows)
        total, last = self.sums.get() or (None, None)
        numbers = [row.n for row in rows if row.n is not None]
        if numbers:
            total = (total or 0) + sum(numbers)
        last = next((row.word for row in reversed(rows) if row.word is not None), last)
        if total == 0:
            total = last = None
        if total is None and last is None:
            self.sums.clear()
        else:
            self.sums.update((total, last))
        yield Row(id=key[0], rows=len(rows), total=total, last=last)


class ArrowTotals(clonos.BatchProcessor):
    """The same of all keys at once."""

    state_schema = "total long, last string"
    state_name = "sums"

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> tuple[Any, Any]:
        words = pa.array(rows["word"])
        new = rows.aggregate(n=("n", "sum"), word=(words, "last"))
        counted = pc.is_valid(new["n"])
        total = pc.if_else(
            counted, pc.add(pc.fill_null(state["total"], 0), new["n"]), state["total"]
        )
        last = pc.coalesce(new["word"], state["last"])
        zero = pc.fill_null(pc.equal(total, 0), False)
        total, last = (
            pc.if_else(zero, pa.scalar(None, column.type), column) for column in (total, last)
        )
        output = pa.table([keys["id"], rows.counts, total, last], ["id", "rows", "total", "last"])
        return output, pa.record_batch([last, total], ["last", "total"])


def by_id(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows), key=repr)


ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b", "c", "d"]),
        st.none() | st.integers(-2, 2),
        st.none() | st.sampled_from("xyz"),
    ),
    max_size=12,
)


@given(st.lists(ROWS, max_size=6))
@settings(max_examples=60)
def test_it_does_what_a_processor_of_rows_does(batches: list[Any]) -> None:
    of_rows = Operator(Totals(), INPUT, OUTPUT)
    in_arrow = Operator(ArrowTotals(), INPUT, OUTPUT, flavour="arrow")
    for rows in batches:
        assert by_id(in_arrow.batch(rows)) == by_id(of_rows.batch(rows))


def test_it_goes_on_with_the_state_of_a_processor_of_rows() -> None:
    operator = Operator(Totals(), INPUT, OUTPUT)
    operator.batch([("a", 1, "x"), ("b", 5, None)])
    operator.change_to(ArrowTotals(), flavour="arrow")
    assert by_id(operator.batch([("a", 2, None), ("b", 2, "y"), ("c", 1, None)])) == [
        ("a", 1, 3, "x"),
        ("b", 1, 7, "y"),
        ("c", 1, 1, None),
    ]
    operator.change_to(Totals(), flavour="row")
    assert by_id(operator.batch([("c", 1, None)])) == [("c", 1, 2, None)]


class Wider(clonos.BatchProcessor):
    """Has a column more, one less, and the others the other way round."""

    state_schema = "new double, total long"
    state_name = "sums"

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> tuple[Any, Any]:
        shown = [str(row) for row in state.to_pylist()]
        return keys.append_column("what", pa.array(shown)), state


def test_columns_of_the_state_evolve_by_name() -> None:
    operator = Operator(ArrowTotals(), INPUT, OUTPUT, flavour="arrow")
    operator.batch([("a", 1, "x")])
    operator.change_to(Wider(), flavour="arrow", output="id string, what string")
    rows = operator.batch([("a", 1, "x"), ("b", 1, "x")])
    assert by_id(rows) == [
        ("a", "{'new': None, 'total': 1}"),
        ("b", "{'new': None, 'total': None}"),
    ]


class Given(clonos.BatchProcessor):
    """Returns what a function makes."""

    state_schema = "n long"

    def __init__(self, make: Callable[[Any, Any, Any], Any]) -> None:
        self.make = make

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> Any:
        return self.make(keys, rows, state)


def in_arrow(make: Callable[[Any, Any, Any], Any], **options: Any) -> Operator:
    return Operator(Given(make), INPUT, "id string", flavour="arrow", **options)


WRONG: dict[str, Callable[[Any, Any], Any]] = {
    r"state .* 1 rows, and there are 2 keys": lambda keys, state: (keys, state.slice(1)),
    r"state .* columns \['m'\], and declared are \['n'\]": lambda keys, state: (
        keys,
        state.rename_columns(["m"]),
    ),
    r"state .* 'n' as string, which is declared int64": lambda keys, _: (
        keys,
        pa.record_batch([pa.array(["1", "2"])], ["n"]),
    ),
    r"state .* 'n' as timestamp\[us\], which is declared int64": lambda keys, _: (
        keys,
        pa.table({"n": pa.array([1, 2], pa.timestamp("us"))}),
    ),
    r"state .* 'n' as double, which is declared int64: .*truncated": lambda keys, _: (
        keys,
        pa.table({"n": [1.5, 2.0]}),
    ),
    r"state .* but NoneType": lambda keys, _: (keys, None),
    r"output .* columns \['id', 'n'\]": lambda keys, state: (
        keys.append_column("n", state["n"]),
        state,
    ),
    r"output .* is no pyarrow.RecordBatch or Table, but list": lambda _, state: ([], state),
    r"a pair, .* returned RecordBatch": lambda _, state: state,
    r"a pair, .* returned tuple": lambda keys, state: (keys, state, state),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_named(message: str) -> None:
    with pytest.raises(UnsupportedType, match=message):
        in_arrow(lambda keys, _, state: WRONG[message](keys, state)).batch(
            [("a", 1, None), ("b", 1, None)]
        )


A_AND_B = types.StructType(
    [types.StructField("a", types.IntegerType()), types.StructField("b", types.IntegerType())]
)


@pytest.mark.parametrize(
    ("returned", "declared", "fits"),
    [
        (pa.array([b"x" * 16], pa.binary(16)), types.BinaryType(), True),
        (pa.array(["x"], pa.large_string()), types.StringType(), True),
        (pa.array([1], pa.int32()), types.DecimalType(12, 2), True),
        (pa.array([99_999_999]), types.DecimalType(10, 2), True),
        (pa.array([100_000_000]), types.DecimalType(10, 2), False),
        (pa.array([7, None]).slice(1), types.DecimalType(18, 0), True),
        (pa.array([7], pa.int8()), types.DecimalType(38, 30), True),
        (pa.array([Decimal("1.5")]), types.DoubleType(), False),
        (pa.array([Decimal(2)]), types.LongType(), True),
        (pa.array([1.239]), types.DecimalType(10, 2), False),
        (pa.array([1_700_000_000_000]), types.TimestampType(), False),
        (pa.array([1], pa.timestamp("us")), types.TimestampType(), False),
        (pa.array([1], pa.timestamp("us", "Europe/Paris")), types.TimestampType(), True),
        (pa.array([True]), types.LongType(), False),
        (pa.array([{"b": 2, "a": 1}]), A_AND_B, True),
        (pa.array([{"a": 1}]), A_AND_B, False),
        (pa.array([[{"a": 1, "c": 2}]]), types.ArrayType(A_AND_B), False),
        (pa.nulls(1), A_AND_B, True),
    ],
)
def test_output_is_taken_if_it_means_what_is_declared(
    returned: pa.Array, declared: types.DataType, fits: bool
) -> None:
    operator = Operator(
        Given(lambda _keys, _rows, state: (pa.table({"v": returned}), state)),
        INPUT,
        types.StructType([types.StructField("v", declared)]),
        flavour="arrow",
    )
    if not fits:
        with pytest.raises(UnsupportedType, match="which is declared"):
            operator.batch([("a", 1, None)])
        return
    (row,) = operator.batch([("a", 1, None)])
    assert row["v"] == returned[0].as_py()


def test_the_state_itself_changes_nothing_and_no_output_is_none() -> None:
    seen = []

    def make(keys: Any, rows: Any, state: Any) -> Any:
        seen.append(state["n"].to_pylist())
        if len(seen) == 1:
            return None, pa.table({"n": pa.chunked_array([[7], [8]], pa.int32())})
        return None, state

    operator = in_arrow(make)
    for _ in range(3):
        operator.batch([("a", 1, None), ("b", 1, None)], processor=Given(make))
    assert seen == [[None, None], [7, 8], [7, 8]]


def test_no_rows_no_call() -> None:
    def make(keys: Any, rows: Any, state: Any) -> Any:
        raise AssertionError

    assert in_arrow(make).batch([]) == []


def test_rows_are_by_key_in_the_order_in_which_they_came() -> None:
    found: dict[str, Any] = {}

    def make(keys: Any, rows: Any, state: Any) -> Any:
        offsets = rows.offsets.to_pylist()
        found.update(
            by_key={
                key: rows["n"][begin:end].to_pylist()
                for key, begin, end in zip(
                    keys["id"].to_pylist(), offsets, offsets[1:], strict=False
                )
            },
            numbers=[keys["id"][number.as_py()] for number in rows.numbers] == list(rows["id"]),
            counts=rows.counts.to_pylist() == [len(n) for n in found.get("by_key", {}).values()],
            lists=rows.aggregate(n=("n", "list"), most=(rows["n"], "max")).to_pylist(),
            times=(rows.now_ms, rows.watermark_ms, len(rows)),
        )
        return keys, state

    for mode, times in (("none", (-1, -1, 60)), ("processingTime", (1_000, -1, 60))):
        operator = in_arrow(make, time_mode=mode)
        rows = [(f"k{n % 7}", n, None) for n in range(60)]
        assert sorted(row["id"] for row in operator.batch(rows, processor=Given(make))) == [
            f"k{k}" for k in range(7)
        ]
        assert found["by_key"] == {f"k{k}": list(range(k, 60, 7)) for k in range(7)}
        assert found["numbers"]
        assert found["times"] == times
        by_key = found["by_key"].values()
        assert found["lists"] == [{"n": ns, "most": max(ns)} for ns in by_key]


def test_an_aggregate_of_no_such_column_is_named() -> None:
    def make(keys: Any, rows: Any, state: Any) -> Any:
        return rows.aggregate(total=("m", "sum")), state

    with pytest.raises(KeyError, match="m"):
        in_arrow(make).batch([("a", 1, None)])


class Passing(clonos.BatchProcessor):
    """Its state is gone after a second."""

    state_schema = "n long"
    ttl_ms = 1_000

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> tuple[Any, Any]:
        output = keys.append_column("n", state["n"])
        return output, pa.record_batch([rows.counts], ["n"])


def test_state_with_a_ttl_is_null_when_it_is_over() -> None:
    operator = Operator(
        Passing(), INPUT, "id string, n long", flavour="arrow", time_mode="processingTime"
    )
    row = [("a", 1, None)]
    found = [operator.batch(row, now=now)[0]["n"] for now in (1_000, 1_999, 2_998, 3_998)]
    assert found == [None, 1, 1, None]
    with pytest.raises(Exception, match="Cannot use TTL"):
        Operator(Passing(), INPUT, "id string, n long", flavour="arrow")


class Latest(clonos.BatchProcessor):
    """Keeps the numbers of the last epoch that had any, in a list."""

    state_schema = "numbers longs"

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> tuple[Any, Any]:
        output = keys.append_column("numbers", state["numbers"])
        return output, rows.aggregate(numbers=("n", "list"))


def test_a_column_of_the_state_may_hold_lists() -> None:
    operator = Operator(Latest(), INPUT, "id string, numbers longs", flavour="arrow")
    batches = [[("a", 1, None), ("b", 2, None), ("a", 3, None)], [("a", 4, None), ("c", 5, None)]]
    found = [by_id(operator.batch(rows)) for rows in [*batches, batches[1]]]
    assert found == [
        [("a", None), ("b", None)],
        [("a", [1, 3]), ("c", None)],
        [("a", [4]), ("c", [5])],
    ]


def test_a_processor_needs_a_state_schema() -> None:
    class Without(clonos.BatchProcessor):
        def handle_batch(self, keys: Any, rows: Any, state: Any) -> Any:
            return keys, state

    with pytest.raises(ConfigError, match="Without needs a state_schema"):
        Operator(Without(), INPUT, "id string", flavour="arrow")
