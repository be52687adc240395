"""Lists of Python values become the arrays that pyarrow makes of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ByteType, DoubleType, FloatType, LongType, StringType

from clonos import _core
from clonos._worker.rows import RowCodec

LONG = st.integers(-(2**63), 2**63 - 1)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), st.text()),
    "large_string": (pa.large_string(), st.text()),
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), LONG),
    "float": (pa.float32(), st.floats()),
    "double": (pa.float64(), st.floats()),
}


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_arrays_are_those_of_pyarrow(kind: str, data: st.DataObject) -> None:
    arrow_type, values = VALUES[kind]
    assert str(arrow_type) == kind
    some = data.draw(st.lists(st.none() | values))
    made = _core.plain_array(some, kind)
    assert made is not None
    assert made.type == arrow_type
    # Not a number is not equal to itself.
    assert repr(made.to_pylist()) == repr(pa.array(some, arrow_type).to_pylist())


@given(
    values=st.lists(st.none() | st.booleans() | st.integers() | st.floats() | st.binary()),
    kind=st.sampled_from(list(VALUES)),
)
def test_what_is_of_another_type_is_left_to_pyarrow(values: list[Any], kind: str) -> None:
    whose = {"b": bool, "i": int, "f": float, "d": float, "s": str, "l": str}[kind[0]]
    made = _core.plain_array(values, kind)
    if any(value is not None and type(value) is not whose for value in values):
        assert made is None
    elif made is None:
        with pytest.raises((pa.ArrowInvalid, OverflowError)):
            pa.array(values, VALUES[kind][0])


@pytest.mark.parametrize(
    ("kind", "values"),
    [("string", ["\ud800"]), ("int64", [1 << 70]), ("int8", [300]), ("date32[day]", [1]), ("", [])],
)
def test_what_has_no_place_in_the_type_is_left_to_pyarrow(kind: str, values: list[Any]) -> None:
    assert _core.plain_array(values, kind) is None


@pytest.mark.parametrize("pickled", [True, False])
def test_coercions_are_as_before(pickled: bool) -> None:
    # A float for a whole number is nothing where rows are pickled.
    whole = RowCodec(LongType(), pickled=pickled).to_arrow([1, 2, None])
    assert whole.to_pylist() == [1, 2, None]
    assert RowCodec(DoubleType(), pickled=pickled).to_arrow([0.5, None]).to_pylist() == [0.5, None]
    assert RowCodec(FloatType(), pickled=pickled).to_arrow([0.1]).type == pa.float32()
    if pickled:
        assert RowCodec(LongType(), pickled=True).to_arrow([1, 2.0]).to_pylist() == [1, None]
        # Java cuts what is too large.
        assert RowCodec(ByteType(), pickled=True).to_arrow([300]).to_pylist() == [44]
        assert RowCodec(StringType(), pickled=True).to_arrow(["a", 1]).to_pylist() == ["a", "1"]


def test_pandas_is_not_imported_for_plain_results() -> None:
    program = """if True:
        import sys
        from pyspark.sql.types import StringType
        from clonos._worker.rows import RowCodec
        codec = RowCodec(StringType(), pickled=True)
        array = codec.to_arrow(["a", None])
        assert codec.to_lists([array]) == [["a", None]]
        assert "pandas" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)
