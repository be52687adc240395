"""What a plain UDF shows to a user, in logs, errors and plans, a causal one shows too."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkNotImplementedError, PythonException
from pyspark.sql import functions as sf
from pyspark.sql.functions import pandas_udf, udf
from pyspark.sql.types import CharType, DoubleType, UserDefinedType

from clonos import causal
from clonos.testing import wait_until

pytestmark = pytest.mark.timeout(360)
# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Celsius) and other.degrees == self.degrees

    __hash__ = None  # type: ignore[assignment]


class CelsiusUDT(UserDefinedType):
    """A type of a program's own, which no worker can import."""

    @classmethod
    def sqlType(cls) -> DoubleType:
        return DoubleType()

    @classmethod
    def module(cls) -> str:
        return __name__

    def serialize(self, obj: Celsius) -> float:
        return obj.degrees

    def deserialize(self, datum: float) -> Celsius:
        return Celsius(datum)


def test_a_type_that_workers_cannot_import_is_returned(spark: Any) -> None:
    measured = causal(udf(Celsius, CelsiusUDT()))
    assert spark.range(3).select(measured("id")).collect()[2][0] == Celsius(2)


def warned(text: Any) -> str:
    logging.getLogger("measured").warning("seen %s", text)
    return str(text)


class Warner:
    def __call__(self, text: Any) -> str:
        return warned(text)

    def method(self, text: Any) -> str:
        return warned(text)

    @classmethod
    def of_class(cls, text: Any) -> str:
        return warned(text)


LOGGING: dict[str, Callable[[], Callable[..., Any]]] = {
    "function": lambda: warned,
    "lambda": lambda: lambda text: warned(f"{text}"),
    "partial": lambda: functools.partial(warned),
    "instance": Warner,
    "method": lambda: Warner().method,
    "class method": lambda: Warner.of_class,
}


def test_the_log_of_workers_names_what_was_called(spark: Any) -> None:
    def read() -> list[list[Any]]:
        try:
            return [spark.tvf.python_worker_logs().orderBy("ts").collect()]
        except Exception as error:
            # Spark begins a new block of them, and drops one, while it is read.
            if "Could not compute split" not in str(error):
                raise
            return []

    def lines() -> list[Any]:
        return wait_until(read, "the log of workers")[0]

    def logged_once(function: Any) -> list[Any]:
        last = max((row.ts for row in lines()), default=datetime.min)
        assert spark.range(1).select(function("id")).first()[0] == "0"

        # Spark takes in what a worker says when it comes to it.
        def new() -> list[Any]:
            return [row for row in lines() if row.ts > last]

        return wait_until(new, "the worker's line", 20)

    def logged(function: Any) -> list[str]:
        # Or never, where it drops the block.
        for _ in range(3):
            with suppress(TimeoutError):
                new = logged_once(function)
                return [str((row.msg, row.context, row.logger)) for row in new]
        raise TimeoutError("Spark has no line of three workers")

    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        for name, make in LOGGING.items():
            plain = logged(udf(make()))
            assert len(plain) == 1, name
            assert logged(causal(udf(make()))) == plain, name
            assert logged(causal("string", record="services")(make())) == plain, name
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")


def test_a_result_that_arrow_has_no_type_for_is_refused_with_sparks_advice(spark: Any) -> None:
    letters = causal(udf(str, CharType(3), useArrow=False))
    with pytest.raises(PySparkNotImplementedError, match="use a different output data type"):
        spark.range(1).select(letters("id"))


@pytest.mark.parametrize("safe", [None, "true", "false"])
def test_a_cast_that_loses_digits_is_refused_where_spark_refuses_it(spark: Any, safe: Any) -> None:
    setting = "spark.sql.execution.pandas.convertToArrowArraySafely"
    plain = pandas_udf(lambda s: s, "long")
    rows = spark.sql("select * from values (9223372036854775707), (null) as t(n)").coalesce(1)

    def outcome(function: Any) -> Any:
        try:
            return rows.select(function("n").alias("n")).collect()
        except PythonException as error:
            return "Failed to convert" in str(error)

    if safe is not None:
        spark.conf.set(setting, safe)
    try:
        assert outcome(causal(plain)) == outcome(plain)
    finally:
        spark.conf.unset(setting)


def short(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for batch in batches:
        yield batch[1:]


def ahead(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for batch in batches:
        yield pd.concat([batch, batch])


def unread(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    yield next(batches)


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (short, "RESULT_ROWS_MISMATCH"),
        (ahead, "OUTPUT_EXCEEDS_INPUT_ROWS"),
        (unread, "INPUT_NOT_FULLY_CONSUMED"),
    ],
    ids=["short", "ahead", "unread"],
)
def test_a_broken_iterator_is_told_as_without_it(spark: Any, fn: Any, error: str) -> None:
    plain = pandas_udf(fn, "long")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "8")
    try:
        for function in (plain, causal(plain), causal(record="services")(plain)):
            with pytest.raises(Exception, match=error):
                spark.range(0, 40, 1, 1).select(function("id")).collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_equal_functions_are_one_to_spark(spark: Any) -> None:
    def make() -> Any:
        def spelt(n: int) -> str:
            return str(n)

        return causal(udf(spelt))

    def plan(df: Any) -> str:
        return str(df._jdf.queryExecution().executedPlan().toString())

    rows = spark.range(4)
    once = plan(rows.select(make()("id"), (sf.length(make()("id")) + 1).alias("n")))
    assert once.count("ArrowEvalPython") == 1
    kept = rows.select(make()("id")).cache()
    try:
        assert "InMemoryTableScan" in plan(rows.select(make()("id")))
        other = causal("string", per="value")(lambda n: str(n + 1))
        assert "InMemoryTableScan" not in plan(rows.select(other("id")))
    finally:
        kept.unpersist()
    # It is called again over its own results, in one task.
    twice = rows.select(make()(make()("id")).alias("v")).collect()
    assert [row.v for row in twice] == list("0123")


def test_a_number_that_is_too_large_is_cut_as_plain_functions_cut_it(session: Any) -> None:
    def large(n: int) -> int:
        return 2**70 if n else n

    rows = session.spark.range(2)
    plain = udf(large, "bigint", useArrow=False)
    expected = rows.select(plain("id").alias("v")).collect()
    assert rows.select(causal(plain)("id").alias("v")).collect() == expected
