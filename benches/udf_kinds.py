"""Each kind of UDF as PySpark has it, and causal, over the same columns.

The functions cost next to nothing, so what is measured is the price of recording.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udf, pandas_udf, udf

from clonos import causal


def upper(text: str) -> str:
    return text.upper()


def is_even(n: int) -> bool:
    return n % 2 == 0


def add(a: float, b: float) -> float:
    return a + b


def pair(n: int) -> tuple[int, float]:
    return n, n / 2


def twice(n: int) -> list[int]:
    return [n, n]


def pandas_add(a: pd.Series, b: pd.Series) -> pd.Series:
    return a + b


def pandas_upper(texts: pd.Series) -> pd.Series:
    return texts.str.upper()


def pandas_double(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for batch in batches:
        yield batch * 2


def arrow_add(a: pa.Array, b: pa.Array) -> pa.Array:
    return pc.add(a, b)


def arrow_upper(texts: pa.Array) -> pa.Array:
    return pc.utf8_upper(texts)


def arrow_double(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for batch in batches:
        yield pc.multiply(batch, 2.0)


async def async_upper(text: str) -> str:
    return text.upper()


def awaited_upper(texts: pd.Series) -> pd.Series:
    """What stands in for an ``async def``, which PySpark's UDFs do not take: one loop per batch."""

    async def all_of_them() -> list[str]:
        return [await async_upper(text) for text in texts]

    return pd.Series(asyncio.run(all_of_them()))


@dataclass(frozen=True)
class Kind:
    """One kind: `plain` and `recorded` make its functions of `columns`."""

    plain: Callable[[], Any]
    recorded: Callable[[], Any]
    columns: tuple[str, ...]


def _rows(fn: Callable[..., Any], returns: str, *columns: str, **options: Any) -> Kind:
    return Kind(
        lambda: udf(fn, returns, **options),
        lambda: causal(uid=fn.__name__, per="row")(udf(fn, returns, **options)),
        columns,
    )


def _values(fn: Callable[..., Any], returns: str, *columns: str) -> Kind:
    return Kind(
        lambda: udf(fn, returns),
        lambda: causal(uid=fn.__name__, per="value")(udf(fn, returns)),
        columns,
    )


def _batches(make: Callable[..., Any], fn: Callable[..., Any], returns: str, *columns: str) -> Kind:
    return Kind(
        lambda: make(fn, returns), lambda: causal(uid=fn.__name__)(make(fn, returns)), columns
    )


def _async(concurrency: int) -> Kind:
    return Kind(
        lambda: pandas_udf(awaited_upper, "string"),
        lambda: causal("string", uid="async", concurrency=concurrency)(async_upper),
        ("text",),
    )


KINDS = {
    "row: string": _rows(upper, "string", "text"),
    "row: two numbers": _rows(add, "double", "a", "b"),
    "row: boolean": _rows(is_even, "boolean", "id"),
    "row: struct": _rows(pair, "a long, b double", "id"),
    "row: array": _rows(twice, "array<long>", "id"),
    "row, useArrow: string": _rows(upper, "string", "text", useArrow=True),
    "row, useArrow: two numbers": _rows(add, "double", "a", "b", useArrow=True),
    "pandas: doubles": _batches(pandas_udf, pandas_add, "double", "a", "b"),
    "pandas: strings": _batches(pandas_udf, pandas_upper, "string", "text"),
    "pandas, iterator": _batches(pandas_udf, pandas_double, "double", "a"),
    "arrow: doubles": _batches(arrow_udf, arrow_add, "double", "a", "b"),
    "arrow: strings": _batches(arrow_udf, arrow_upper, "string", "text"),
    "arrow, iterator": _batches(arrow_udf, arrow_double, "double", "a"),
    "async, one at a time": _async(1),
    "async, 16 at a time": _async(16),
    "value: 1000 distinct": _values(is_even, "boolean", "few"),
    "value: all distinct": _values(is_even, "boolean", "id"),
    "value: all distinct, string": _values(upper, "string", "text"),
}


def table(spark: SparkSession, rows: int) -> DataFrame:
    """Return the columns that the kinds take, in four partitions."""
    return spark.range(0, rows, 1, 4).selectExpr(
        "id",
        "id % 1000 AS few",
        "concat('row number ', id) AS text",
        "cast(id AS double) AS a",
        "id / 2 AS b",
    )


def plain_apart(spark: SparkSession, kind: Kind) -> Any:
    """Return the plain function of a kind, which Spark runs in workers of its own.

    The collector of garbage skips the libraries of a worker that has run a causal function, so its
    plain functions are faster, too.
    """
    environment = spark.sparkContext.environment
    environment["PLAIN_WORKERS"] = "1"
    try:
        function = kind.plain()
        # The environment of its workers is fixed by its first call.
        function(*kind.columns)
    finally:
        del environment["PLAIN_WORKERS"]
    return function


def run(
    rows: DataFrame, function: Any, columns: tuple[str, ...], others: tuple[str, ...] = ()
) -> None:
    """Run the function over all rows, and read `others`; the results go nowhere."""
    rows.select(*others, function(*columns).alias("x")).write.format("noop").mode(
        "overwrite"
    ).save()
