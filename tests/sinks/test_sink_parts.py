"""Options, messages and columns of the sinks, without Spark."""

from __future__ import annotations

import datetime as dt
import decimal
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos._sinks import columns
from clonos._sinks.messages import pack, unpack
from clonos._sinks.options import Guarantee, Options
from clonos.errors import ConfigError, ResourceExhausted


def test_options_are_found_in_any_case():
    options = Options(
        "sink", {"PATH": "/a", "busyseconds": "3", "kafka.ACKS": "1"}, ("busySeconds", "kafka.")
    )
    assert options.local_path() == "/a"
    assert options.seconds("busySeconds", 9) == 3
    assert options.prefixed("kafka.") == {"acks": "1"}
    assert options.guarantee() is Guarantee.EXACTLY_ONCE
    assert options.names("key") == []


@pytest.mark.parametrize(
    ("given_options", "read", "parts"),
    [
        ({"tabel": "x"}, lambda o: o, ["tabel", "table"]),
        ({}, lambda o: o.text("table"), ["table"]),
        ({"table": " "}, lambda o: o.text("table"), ["table"]),
        ({"guarantee": "once"}, lambda o: o.guarantee(), ["guarantee", "at_most_once"]),
        ({"wait": "soon"}, lambda o: o.seconds("wait", 1), ["wait", "soon", "seconds"]),
        ({"wait": "nan"}, lambda o: o.seconds("wait", 1), ["wait"]),
        ({"size": "-1"}, lambda o: o.size("size", "1k"), ["size"]),
        ({"path": "s3://a/b"}, lambda o: o.local_path(), ["path", "s3://a/b", "mounted"]),
    ],
)
def test_an_error_names_the_option_and_what_it_may_be(given_options, read, parts):
    with pytest.raises(ConfigError) as caught:
        read(Options("sink", given_options, ("table", "wait", "size")))
    for part in parts:
        assert part in str(caught.value)


def test_paths_may_be_uris_of_files():
    assert Options("sink", {"path": "file:///a%20b"}, ()).local_path() == "/a b"


def test_what_is_packed_comes_out():
    batches = [pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [3]})]
    rows, packed = pack(iter(batches), 1 << 20)
    assert rows == 3
    assert list(unpack(packed)) == batches
    assert pack(iter([]), 10) == (0, None)
    assert list(unpack(None)) == []


def test_too_much_for_a_message_is_refused():
    batch = pa.record_batch({"a": list(range(10_000))})
    with pytest.raises(ResourceExhausted, match=r"more partitions.*maxTaskBytes.*maxResultSize"):
        pack(iter([batch]), 1000)


TEXTS = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@given(
    st.lists(
        st.tuples(TEXTS, NUMBERS, st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))),
        max_size=8,
    )
)
def test_json_lines_are_what_json_reads(rows):
    names = ['a "quoted" name', "n", "i"]
    kinds = [pa.string(), pa.float64(), pa.int64()]
    arrays = [pa.array([row[i] for row in rows], kinds[i]) for i in range(3)]
    # A slice, so that offsets do not begin at 0.
    batch = pa.RecordBatch.from_arrays(arrays, names=names).slice(1)
    lines = columns.json_lines(batch).decode().split("\n")[:-1]
    wanted = [dict(zip(names, row, strict=True)) for row in rows[1:]]
    assert [json.loads(line) for line in lines] == [
        {name: value for name, value in row.items() if value is not None} for row in wanted
    ]


def test_values_of_every_kind_become_json():
    at = dt.datetime(2026, 3, 1, 12, 30, tzinfo=dt.UTC)
    batch = pa.record_batch(
        {
            "flag": [True],
            "day": [at.date()],
            "at": pa.array([at], pa.timestamp("us", "Europe/Berlin")),
            "plain": pa.array([at.replace(tzinfo=None)], pa.timestamp("us")),
            "amount": [decimal.Decimal("1.50")],
            "raw": [b"\x00\xff"],
            "inner": [{"x": [1, None], "at": at}],
            "more": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
            "odd": [float("inf")],
            "none": pa.array([float("nan")]),
        }
    )
    assert json.loads(columns.json_lines(batch)) == {
        "flag": True,
        "day": "2026-03-01",
        "at": "2026-03-01T12:30:00.000000Z",
        "plain": "2026-03-01T12:30:00.000000",
        "amount": 1.5,
        "raw": "AP8=",
        "inner": {"x": [1, None], "at": "2026-03-01T12:30:00+00:00"},
        "more": {"k": 1},
        "odd": "Infinity",
        "none": "NaN",
    }
