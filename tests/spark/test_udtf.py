"""Causal table functions: each call is answered once, and what an instance keeps is right again."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.functions import arrow_udtf, udtf
from pyspark.sql.types import StructType
from pyspark.sql.udtf import AnalyzeResult, SkipRestOfInputTableException

import clonos
from clonos import causal
from clonos.errors import ConfigError, NotRecordedWarning

KEYS = 3
SCHEMA = "n: long, v: double"
pytestmark = pytest.mark.timeout(480)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@causal
@udtf(returnType=SCHEMA)
class Several:
    def eval(self, n: int) -> Iterator[Any]:
        for number in range(n):
            yield number, random.random()


@causal(uid="listed")
@udtf(returnType=SCHEMA, useArrow=True)
class Listed:
    def eval(self, n: int, times: int = 2) -> list[Any]:
        return [(n, random.random())] * times


@causal(uid="counting")
@udtf(returnType=SCHEMA)
class Counting:
    def __init__(self) -> None:
        self.count = 0
        self.sums: dict[str, int] = {}

    def eval(self, row: Any) -> Iterator[Any]:
        self.count += 1
        self.sums["id"] = self.sums.get("id", 0) + row["id"]
        yield self.sums["id"], random.random()

    def terminate(self) -> Iterator[Any]:
        yield self.count, random.random()


@causal(uid="skipping")
@udtf(returnType=SCHEMA)
class Skipping:
    def eval(self, row: Any) -> Iterator[Any]:
        yield row["id"], random.random()
        if row["id"] > 20:
            raise SkipRestOfInputTableException


@causal(uid="analysed")
@udtf
class Analysed:
    @staticmethod
    def analyze(_n: Any) -> AnalyzeResult:
        return AnalyzeResult(StructType().add("v", "double"))

    def eval(self, _n: int) -> Iterator[Any]:
        yield (random.random(),)


@causal(uid="arrow")
@arrow_udtf(returnType=SCHEMA)
class OfBatches:
    def eval(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
        drawn = [random.random() for _ in range(rows.num_rows)]
        yield pa.table({"n": rows.column("id"), "v": drawn})


@causal(uid="services", record="services")
@udtf(returnType=SCHEMA)
class FromServices:
    def __init__(self) -> None:
        self.drawn: list[float] = []

    def eval(self, _row: Any) -> None:
        self.drawn.append(clonos.random.random() + clonos.call(random.random))

    def terminate(self) -> Iterator[Any]:
        for value in self.drawn:
            yield len(self.drawn), value


def by_key(spark: Any) -> Any:
    rows = spark.range(0, 30, 1, 4).selectExpr("id", f"id % {KEYS} as k")
    return rows.asTable().partitionBy("k").orderBy("id")


def in_sql(spark: Any) -> Any:
    spark.udtf.register("several", Several)
    return spark.sql("select id, n, v from range(0, 8, 1, 2), lateral several(3)")


QUERIES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda _spark: Several(sf.lit(5)),
    "SQL": in_sql,
    "with Arrow": lambda _spark: Listed(sf.lit(5), times=sf.lit(3)),
    "state": lambda spark: Counting(by_key(spark)),
    "skip": lambda spark: Skipping(by_key(spark)),
    "analyze": lambda _spark: Analysed(sf.lit(5)),
    "of batches": lambda spark: OfBatches(spark.range(0, 30, 1, 4).asTable()),
    "services": lambda spark: FromServices(by_key(spark)),
}


def values(df: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


@pytest.mark.parametrize("name", QUERIES)
def test_a_call_is_answered_once(spark: Any, session: Any, name: str) -> None:
    with session.epoch(name):
        first = values(QUERIES[name](spark))
        again = values(QUERIES[name](spark))
    assert first
    assert first == again


@pytest.mark.parametrize("fails_in", ["eval", "terminate"])
def test_an_attempt_goes_on_where_the_last_one_failed(
    spark: Any, session: Any, tmp_path: Path, fails_in: str
) -> None:
    """What was answered is not asked again, and the instance is as it was."""
    calls, failed = str(tmp_path / "calls"), str(tmp_path / "failed")

    def fail_once() -> None:
        if not Path(failed).exists():
            Path(failed).touch()
            raise TimeoutError

    @causal(uid=f"fails in {fails_in}")
    @udtf(returnType="n: long, total: long")
    class Totals:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def eval(self, row: Any) -> Iterator[Any]:
            with Path(calls).open("a") as file:
                file.write(f"{row['id']}\n")
            if fails_in == "eval" and row["id"] == 6:
                fail_once()
            self.seen.append(row["id"])
            yield len(self.seen), sum(self.seen)

        def terminate(self) -> Iterator[Any]:
            if fails_in == "terminate":
                fail_once()
            yield -len(self.seen), sum(self.seen)

    rows = spark.range(0, 10, 1, 1).asTable().withSinglePartition().orderBy("id")
    answers = values(Totals(rows))
    assert Path(failed).exists()
    assert answers == [(-10, 45), *((n + 1, n * (n + 1) // 2) for n in range(10))]
    again = ["6"] if fails_in == "eval" else []
    asked = sorted(Path(calls).read_text().split())
    assert asked == sorted([*map(str, range(10)), *again])


@pytest.mark.parametrize("anew", ["set", "deleted", "never there"])
def test_what_a_call_puts_back_is_put_back_at_replay(
    spark: Any, session: Any, tmp_path: Path, anew: str
) -> None:
    """Pairs of rows: after each the instance is as it was at first."""
    calls, failed = str(tmp_path / "calls"), str(tmp_path / "failed")

    @causal(uid=f"pairs {anew}")
    @udtf(returnType="first: long, second: long")
    class Pairs:
        def __init__(self) -> None:
            if anew != "never there":
                self.held: list[int] = []

        def eval(self, row: Any) -> Iterator[Any]:
            with Path(calls).open("a") as file:
                file.write(f"{row['id']}\n")
            if row["id"] == 6 and not Path(failed).exists():
                Path(failed).touch()
                raise TimeoutError
            self.held = [*getattr(self, "held", []), row["id"]]
            if len(self.held) == 2:
                pair = tuple(self.held)
                if anew == "set":
                    self.held = []
                else:
                    del self.held
                yield pair

    rows = spark.range(0, 10, 1, 1).asTable().withSinglePartition().orderBy("id")
    assert values(Pairs(rows)) == [(n, n + 1) for n in range(0, 10, 2)]
    asked = sorted(Path(calls).read_text().split())
    assert asked == sorted([*map(str, range(10)), "6"])


def test_state_that_is_too_large_is_refused(spark: Any) -> None:
    @causal(uid="hoards")
    @udtf(returnType="n: long")
    class Hoards:
        def __init__(self) -> None:
            self.kept = ""

        def eval(self, _n: int) -> None:
            self.kept = "x" * 100_000

    with pytest.raises(PySparkException, match=r"self\.kept.*record='services'"):
        Hoards(sf.lit(1)).collect()


def test_a_large_attribute_that_stays_is_none_of_it(spark: Any, session: Any) -> None:
    @causal(uid="model")
    @udtf(returnType="n: long, v: double")
    class OfModel:
        def __init__(self) -> None:
            self.model = "x" * 1_000_000
            self.connect: Any = lambda: self

        def eval(self, n: int) -> Iterator[Any]:
            yield n + len(self.model), random.random()

    with session.epoch("model"):
        assert values(OfModel(sf.lit(1))) == values(OfModel(sf.lit(1)))
        assert session.stats().totals.bytes < 100_000


def test_a_session_attached_later_counts(plain_spark: Any) -> None:
    @causal(uid="later")
    @udtf(returnType="v: double")
    class Draws:
        def eval(self) -> Iterator[Any]:
            yield (random.random(),)

    with pytest.warns(NotRecordedWarning, match="later is not recorded"):
        Draws().collect()
    with clonos.attach(plain_spark) as session, session.epoch("later"):
        assert values(Draws()) == values(Draws())


def test_a_type_is_declared_once() -> None:
    plain = udtf(type("Handler", (), {"eval": print}), returnType="n: long")
    with pytest.raises(ConfigError, match="given to udtf"):
        causal("n: long")(plain)
