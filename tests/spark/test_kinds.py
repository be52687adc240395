"""A causal function takes arguments, gives types and shows attributes as PySpark's own UDF does."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import functions as sf
from pyspark.sql.functions import arrow_udf, pandas_udf, udf
from pyspark.sql.types import ArrayType, DoubleType, LongType
from pyspark.util import PythonEvalType

from clonos import causal

pytestmark = pytest.mark.timeout(600)
# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def describe(*args: Any, greeting: str = "hello", **named: Any) -> str:
    return f"{greeting} {list(args)} {sorted(named.items())}"


def only_by_name(*, left: int, right: int = 2) -> str:
    return f"{left} {right}"


def nothing() -> str:
    return "called"


async def awaited() -> str:
    return "awaited"


ARGUMENTS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "a default is a value": (describe, lambda f: f("id")),
    "a default is replaced": (describe, lambda f: f("id", greeting=sf.lit("hi"))),
    "other names": (describe, lambda f: f(sf.col("id"), b="id", c=sf.col("id") + 1)),
    "keyword only": (only_by_name, lambda f: f(left="id")),
    "no arguments": (nothing, lambda f: f()),
    "names in SQL": (describe, lambda _f: sf.expr("registered(id, c => id + 1, b => 'x')")),
    "names alone in SQL": (only_by_name, lambda _f: sf.expr("registered(right => 5, left => id)")),
    "no arguments in SQL": (nothing, lambda _f: sf.expr("registered()")),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_bound_as_without_it(spark: Any, name: str) -> None:
    fn, call = ARGUMENTS[name]
    rows = spark.range(3)

    def of(function: Any) -> Any:
        spark.udf.register("registered", function)
        return rows.select(call(function))

    plain, ours = of(udf(fn)), of(causal("string", uid=name)(fn))
    assert ours.collect() == plain.collect()
    if "=>" not in plain.columns[0]:
        assert ours.columns == plain.columns


def test_a_call_that_binds_nothing_is_refused_in_sparks_words(spark: Any) -> None:
    spark.udf.register("twice", causal("string", uid="twice")(describe))
    with pytest.raises(AnalysisException, match=r"DOUBLE_NAMED_ARGUMENT_REFERENCE.*`twice`"):
        spark.sql("select twice(a => 1, a => 2)")
    with pytest.raises(AnalysisException, match="UNEXPECTED_POSITIONAL_ARGUMENT"):
        spark.sql("select twice(a => 1, 2)")


def test_functions_without_arguments_of_each_kind(spark: Any) -> None:
    row = spark.range(1).select(
        causal("string", uid="async, no arguments")(awaited)(),
        causal("string", uid="services, no arguments", record="services")(nothing)(),
    )
    assert list(row.first()) == ["awaited", "called"]


def test_attributes_are_those_of_the_udf(spark: Any) -> None:
    plain = udf(describe, "array<long>")
    ours = causal(plain)
    for name in ("func", "returnType", "evalType", "deterministic", "__name__", "__module__"):
        assert getattr(ours, name) == getattr(plain, name), name
    assert (ours.__doc__, ours.__wrapped__) == (plain.__doc__, describe)
    assert ours.returnType == ArrayType(LongType())
    assert ours.deterministic
    assert not ours.asNondeterministic().deterministic
    bound = causal("string")(functools.partial(describe, 1))
    assert bound.__name__ == "partial"
    assert causal(pandas_udf(lambda s: s, DoubleType())).evalType == (
        PythonEvalType.SQL_SCALAR_PANDAS_UDF
    )


def test_a_registered_function_keeps_what_it_was_declared_as(session: Any, spark: Any) -> None:
    made: list[int] = []
    counted = causal("long", uid="counted")(lambda n: made.append(n) or n)  # type: ignore[func-returns-value]
    with pytest.raises(PySparkTypeError, match="CANNOT_SPECIFY_RETURN_TYPE_FOR_UDF"):
        spark.udf.register("counted", counted, "long")
    registered = spark.udf.register("counted", counted)
    assert registered.__name__ == "counted"
    with session.epoch("registered"):
        rows = spark.range(9).select(registered("id"))
        assert rows.columns == ["counted(id)"]
        rows.collect()
        spark.sql("select counted(id) from range(9)").collect()
        assert session.stats().totals.live > 0, "what SQL runs is recorded"


def test_a_function_under_another_uid_has_uses_of_its_own(spark: Any) -> None:
    one = causal("long", uid="one")(lambda n: n)
    assert one("id") is not None
    rows = spark.range(3).select(one("id"), one.with_uid("another")("id"))
    assert [list(row) for row in rows.collect()] == [[0, 0], [1, 1], [2, 2]]


# --- types: what goes in, and what comes out --------------------------------------------------

INPUTS = {
    "int": "id",
    "string": "string(id)",
    "null": "cast(null as void)",
    "decimal": "cast(id as decimal(10, 2))",
    "timestamp": "timestamp_seconds(id)",
    "without a zone": "cast(timestamp_seconds(id) as timestamp_ntz)",
    "date": "date_add(date'2024-02-28', int(id))",
    "duration": "make_dt_interval(id)",
    "map": "map('k', id)",
    "struct": "named_struct('a', id, 'b', array(id))",
    "char": "cast('x' as char(3))",
    "varchar": "cast('x' as varchar(3))",
    "binary": "cast('x' as binary)",
    "variant": "parse_json('{\"a\": 1}')",
}


@pytest.mark.parametrize("arrow", [False, True], ids=["pickled", "arrow"])
def test_every_type_goes_in(spark: Any, arrow: bool) -> None:
    rows = spark.range(1, 4, 1, 2).selectExpr(*(f"{t} as `{n}`" for n, t in INPUTS.items()))
    rows = rows.unionByName(rows.limit(0))
    seen = udf(
        lambda *row: [f"{type(v).__name__} {v}" for v in row], "array<string>", useArrow=arrow
    )
    columns = list(INPUTS)
    assert _sorted(rows.select(causal(seen)(*columns))) == _sorted(rows.select(seen(*columns)))


@pytest.mark.classic
def test_months_arrive_as_their_number(spark: Any) -> None:
    # Plain functions cannot take them at all.
    months = causal("int", uid="months")(lambda n: n)
    rows = spark.range(1).select(sf.expr("interval '1-2' year to month").alias("m"))
    assert rows.select(months(rows.m)).first()[0] == 14


@pytest.mark.parametrize("arrow", [False, True], ids=["pickled", "arrow"])
@pytest.mark.parametrize("record", ["result", "services"])
def test_intervals_arrive_as_pyarrow_has_them(spark: Any, arrow: bool, record: Any) -> None:
    # Spark's pickled functions are given dicts with nothing of the interval in them.
    made = "make_interval(1, 2, 0, 3, 0, 0, id)"
    rows = spark.range(2).selectExpr(
        f"{made} as i", "cast(null as interval) as n", f"array({made}) as a",
        f"named_struct('f', {made}) as s", f"map('k', {made}) as m",
    )  # fmt: skip

    def text(*row: Any) -> str:
        return repr(row)

    plain = udf(text, "string", useArrow=True)
    expected = _sorted(rows.select(plain(*rows.columns)))
    assert "MonthDayNano(months=14, days=3, nanoseconds=1000000000)" in expected[1]
    asked = causal(uid="intervals", record=record)(udf(text, "string", useArrow=arrow))
    assert _sorted(rows.select(asked(*rows.columns))) == expected
    assert _sorted(rows.select(asked(*(rows[name] for name in rows.columns)))) == expected


OUTPUTS: dict[str, tuple[str, list[Any]]] = {
    "int of others": ("int", [1, 2.5, "3", True, None, 2**40]),
    "double of others": ("double", [1, 2.5, "3", None]),
    "decimal of int": ("decimal(10,2)", [1, decimal.Decimal("2.555"), None]),
    "string of others": ("string", [1, True, 2.5, None, "x"]),
    "boolean of others": ("boolean", [1, True, None]),
    "string of structures": ("string", [[1.5, None, True], {"k": [1e10]}, 1e-5, {"b": 1, "a": 2}]),
    "strings of halves": ("array<string>", [["a\ud800", "b"], ["\udfff\ud800"]]),
    "binary of a half": ("binary", ["a\ud800"]),
    "date of number": ("date", [5]),
    "date of time": ("date", [dt.datetime(2024, 1, 1, 12), dt.date(2024, 1, 2), None]),
    "timestamp of number": ("timestamp", [5]),
    "timestamps of numbers": ("array<timestamp_ntz>", [[5.5]]),
    "duration of number": ("interval day to second", [5]),
    "numbers of bytes": ("array<int>", [b"ab", bytearray(b"c"), None]),
    "double of others still": ("double", [dt.date(2024, 1, 1), b"x", [1.0], ()]),
    "double of nothing": ("double", [decimal.Decimal("NaN"), 1.0]),
    "decimal of nothing": ("decimal(10,2)", [decimal.Decimal("NaN"), decimal.Decimal("1.5")]),
    "struct": ("struct<a:int,b:string>", [(1, "x"), {"a": 2, "b": "y"}, None]),
    "struct of something else": ("struct<a:int,b:string>", [(1, "x"), 5]),
    "structs of something else": ("array<struct<a:int>>", [[(1,)], ["x"]]),
    "clock on a wall": ("timestamp_ntz", [dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC), None]),
    "clock on a wall of something else": ("timestamp_ntz", ["2024-01-01"]),
    "timestamp": ("timestamp", [dt.datetime(2024, 1, 1, 12), None]),
    "map": ("map<string,array<int>>", [{"k": [1, None]}, {}, None]),
    "binary": ("binary", [b"x", bytearray(b"y"), None]),
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("arrow", [False, True], ids=["pickled", "arrow"])
def test_a_result_is_coerced_as_the_udf_would(spark: Any, arrow: bool, name: str) -> None:
    kind, values = OUTPUTS[name]
    plain = udf(lambda n: values[n], kind, useArrow=arrow)
    rows = spark.range(0, len(values), 1, 1)

    def outcome(function: Any) -> Any:
        try:
            # As text, for NaN is not equal to itself.
            return repr(rows.select(function("id").alias("v")).collect())
        except Exception as error:  # what plain UDFs refuse is refused
            return type(error)

    # Arrow casts what is in a batch together, and answers per value are not one batch.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        assert outcome(causal(plain)) == outcome(plain)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.parametrize(("kind", "value"), [("long", np.int64(4)), ("boolean", np.bool_(True))])
def test_what_the_jvm_cannot_read_is_an_error_and_not_null(
    spark: Any, kind: str, value: object
) -> None:
    plain = udf(lambda _n: value, kind, useArrow=False)
    rows = spark.range(0, 2, 1, 1)
    with pytest.raises(Exception, match="ClassDict"):
        rows.select(plain("id")).collect()
    with pytest.raises(Exception, match=r"numpy\.\w+, which pickled functions cannot hand over"):
        rows.select(causal(plain)("id")).collect()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("decimal(5,2)", decimal.Decimal(123456789)),
        ("decimal(7,2)", decimal.Decimal("99999.995")),
        ("struct<d:decimal(5,2)>", (decimal.Decimal(-1000),)),
        ("map<string,array<decimal(38,38)>>", {"k": [decimal.Decimal("1e10")]}),
        ("decimal(7,2)", decimal.Decimal("99999.994")),
        ("decimal(4,2)", decimal.Decimal("-0.005")),
        ("decimal(38,10)", decimal.Decimal("1234567890123456789012345678.00000000005")),
        ("array<decimal(5,2)>", [decimal.Decimal("NaN"), None]),
        ("decimal(5,2)", decimal.Decimal("sNaN")),
        ("decimal(5,2)", decimal.Decimal("-Infinity")),
        ("decimal(5,2)", 7),
        ("decimal(38,0)", decimal.Decimal("9" * 38)),
    ],
)
def test_a_pickled_decimal_is_what_plain_spark_makes_of_it(
    spark: Any, kind: str, value: object
) -> None:
    plain = udf(lambda _n: value, kind, useArrow=False)

    def outcome(function: Any) -> object:
        try:
            return spark.range(0, 2, 1, 1).select(function("id").alias("v")).collect()
        except Exception:  # the JVM says it otherwise where it cannot read the pickle
            return "refused"

    assert outcome(causal(plain)) == outcome(plain)


def test_a_struct_of_another_length_has_sparks_own_condition(spark: Any) -> None:
    plain = udf(lambda _n: (1, "x", 2), "struct<a:int,b:string>", useArrow=False)
    rows = spark.range(0, 2, 1, 1)
    for function in (plain, causal(plain)):
        with pytest.raises(Exception, match=r"STRUCT_ARRAY_LENGTH_MISMATCH.*2 fields.*3 values"):
            rows.select(function("id")).collect()


@pytest.mark.classic
def test_vectors_and_other_types_of_users(spark: Any) -> None:
    from pyspark.ml.linalg import Matrices, Vectors, VectorUDT
    from pyspark.testing.objects import PythonOnlyPoint, PythonOnlyUDT

    data = [
        (Vectors.dense(1, 2), Matrices.dense(1, 1, [3]), PythonOnlyPoint(4.0, 5.0)),
        (None,) * 3,
    ]
    rows = spark.createDataFrame(data, ["v", "m", "p"])
    shown = causal("string", uid="shown")(lambda *all_of: str(all_of))
    assert _sorted(rows.select(shown("v", "m"))) == _sorted(
        rows.select(udf(lambda *all_of: str(all_of))("v", "m"))
    )
    assert rows.select(causal("double", uid="x")(lambda p: p and p.x)(rows.p)).first()[0] == 4
    twice = causal(VectorUDT(), uid="twice v")(lambda v: v and Vectors.dense(v.array * 2))
    assert rows.select(twice("v")).first()[0] == Vectors.dense(2, 4)
    moved = causal(PythonOnlyUDT(), uid="moved")(lambda n: PythonOnlyPoint(n, n))
    assert spark.range(1).select(moved("id")).first()[0] == PythonOnlyPoint(0, 0)


# --- pandas and Arrow: the declared type counts ------------------------------------------------

VECTORISED: dict[str, tuple[Any, Any, str]] = {
    "lists, at first empty": (
        pandas_udf,
        lambda s: s.map(lambda n: [] if n < 20 else ["x"]),
        "array<string>",
    ),
    "lists, at first null": (
        pandas_udf,
        lambda s: s.map(lambda n: None if n < 20 else ["x"]),
        "array<string>",
    ),
    "struct": (
        pandas_udf,
        lambda s: pd.DataFrame({"t": [pd.Timestamp(2024, 1, 1)] * len(s), "l": [[None]] * len(s)}),
        "struct<t:timestamp,l:array<int>>",
    ),
    "timestamps": (pandas_udf, lambda s: pd.to_datetime(s, unit="s"), "timestamp"),
    "numbers of strings": (pandas_udf, lambda s: s.astype(str), "long"),
    "decimals": (pandas_udf, lambda s: s.map(decimal.Decimal), "decimal(10,2)"),
    "maps": (pandas_udf, lambda s: s.map(lambda n: {"k": n}), "map<string,long>"),
    "arrow of another type": (arrow_udf, lambda a: a.cast(pa.int32()), "long"),
}


@pytest.mark.parametrize("name", VECTORISED)
def test_the_declared_type_counts(spark: Any, name: str) -> None:
    make, fn, kind = VECTORISED[name]
    plain = make(fn, kind)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        for rows in (spark.range(0, 40, 1, 2), spark.range(0)):
            ours = rows.select(causal(plain)("id"))
            assert _sorted(ours) == _sorted(rows.select(plain("id")))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_iterators_give_maps_and_take_keys(spark: Any) -> None:
    @pandas_udf("map<string,long>")
    def maps(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            assert isinstance(batch, pd.Series), "key columns are not the function's"
            yield batch.map(lambda n: {"k": n})

    rows = spark.range(0, 4, 1, 2).withColumn("m", sf.create_map(sf.lit("a"), "id"))
    for record in ("result", "services"):
        keyed = causal(uid=record, record=record)(maps)
        found = rows.select("id", keyed("id", row_key="*").alias("v")).collect()
        assert all(row.v == {"k": row.id} for row in found)


def _sorted(rows: Any) -> list[str]:
    return sorted(map(repr, rows.collect()))
