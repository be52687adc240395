"""Table functions and groups as people write them: state of all kinds, recursion, exceptions."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import functions as sf
from pyspark.sql.functions import udtf
from pyspark.sql.udtf import SkipRestOfInputTableException

from clonos import causal

pytestmark = pytest.mark.timeout(480)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Sums:
    """A class of the user's program, which no worker can import."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0

    def add(self, value: int) -> None:
        self.count += 1
        self.total += value

    def all(self) -> tuple[int, int]:
        return self.count, self.total


class Defaults:
    def __init__(self) -> None:
        self.held: Any = defaultdict(lambda: 0)

    def add(self, value: int) -> None:
        self.held["count"] += 1
        self.held["total"] += value

    def all(self) -> tuple[int, int]:
        return self.held["count"], self.held["total"]


class Seen:
    """A set that is filled in another order than the one it has when it is made again."""

    def __init__(self) -> None:
        self.held: set[int] = set()

    def add(self, value: int) -> None:
        self.held.add((value * 8 + 7) % 80)

    def all(self) -> tuple[int, int]:
        return len(self.held), sum(self.held)


class Shared:
    """One object in two places, and a method of its own as a step."""

    def __init__(self) -> None:
        self.sums = {0: Sums(), 1: Sums()}
        self.current = self.sums[0]
        self.step = self.even

    def even(self, value: int) -> None:
        self.current = self.sums[1]
        self.step = self.odd
        self.current.add(value)

    def odd(self, value: int) -> None:
        self.current.add(value)
        self.current = self.sums[0]
        self.step = self.even

    def add(self, value: int) -> None:
        self.step(value)

    def all(self) -> tuple[int, int]:
        return self.sums[1].all()


def summing(state: type, calls: Path) -> type:
    class Summing:
        def __init__(self) -> None:
            self.state = state()

        def eval(self, row: Any) -> None:
            with calls.open("a") as file:
                file.write(f"{row['id']}\n")
            if row["id"] == 6 and TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
                raise TimeoutError
            self.state.add(row["id"])

        def terminate(self) -> Iterator[Any]:
            yield self.state.all()

    return Summing


def rows(spark: Any) -> Any:
    return spark.range(0, 10, 1, 1).asTable().withSinglePartition().orderBy("id")


@pytest.mark.parametrize("state", [Sums, Defaults, Seen, Shared])
def test_an_instance_is_as_it_was_whatever_it_keeps(
    spark: Any, session: Any, tmp_path: Path, state: type
) -> None:
    calls = tmp_path / "calls"
    function = causal(uid="summing")(
        udtf(summing(state, calls), returnType="count: long, total: long")
    )
    expected: Any = state()
    for number in range(10):
        expected.add(number)
    assert [tuple(row) for row in function(rows(spark)).collect()] == [expected.all()]
    asked = calls.read_text().split()
    assert [number for number in asked if asked.count(number) > 1] == ["6", "6"]


class Countdown:
    def eval(self, n: int) -> Iterator[Any]:
        yield (n,)
        if n > 1:
            yield from self.eval(n - 1)


class Buffered:
    """Flushes the rest at the end by the method that takes rows."""

    def __init__(self) -> None:
        self.held = 0

    def eval(self, row: Any) -> Iterator[Any]:
        self.held += 0 if row is None else row["id"]
        if row is None or self.held > 10:
            yield (self.held,)
            self.held = 0

    def terminate(self) -> Iterator[Any]:
        yield from self.eval(None)


class Three:
    def eval(self, row: Any) -> Iterator[Any]:
        yield (row["id"],)
        if row["id"] == 3:
            raise SkipRestOfInputTableException


@pytest.mark.parametrize("record", ["result", "services"])
@pytest.mark.parametrize("handler", [Countdown, Buffered, Three])
def test_a_table_function_does_what_the_plain_one_does(
    spark: Any, session: Any, handler: type, record: Any
) -> None:
    plain = udtf(handler, returnType="n: long")
    recorded = causal(uid="recorded", record=record)(udtf(handler, returnType="n: long"))

    def argument() -> Any:
        return sf.lit(3) if handler is Countdown else rows(spark)

    assert recorded(argument()).collect() == plain(argument()).collect()


@causal(uid="doubled")
def doubled(frame: pd.DataFrame) -> pd.DataFrame:
    if 2 in set(frame["id"]):
        raise ConnectionError
    return frame * 2


def test_whoever_catches_what_a_group_raises_goes_on(spark: Any, session: Any) -> None:
    def each(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            try:
                yield doubled(frame)
            except ConnectionError:
                yield frame.assign(id=-1)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    try:
        numbers = spark.range(0, 6, 1, 1).mapInPandas(each, "id long").collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [row.id for row in numbers] == [0, 2, -1, -1, 8, 10]


def test_a_generator_is_tried_again(spark: Any, session: Any, tmp_path: Path) -> None:
    tries = tmp_path / "tries"

    @causal(uid="flaky", retries=3)
    def flaky(frames: Any) -> Any:
        with tries.open("a") as file:
            file.write("x")
        for frame in frames:
            if len(tries.read_text()) < 3:
                raise ConnectionError
            yield frame

    assert spark.range(0, 4, 1, 1).mapInPandas(flaky, "id long").count() == 4
    assert tries.read_text() == "xxx"


def test_type_hints_make_an_aggregate(spark: Any, session: Any) -> None:
    @causal("double", uid="mean")
    def mean(values: pd.Series) -> float:
        return float(values.mean()) + 0 * random.random()

    found = spark.range(0, 10, 1, 2).groupBy((sf.col("id") % 2).alias("k")).agg(mean("id"))
    assert sorted(map(tuple, found.collect())) == [(0, 4.0), (1, 5.0)]


def test_tracebacks_begin_at_the_users_code(spark: Any, session: Any) -> None:
    def failing(frame: Any) -> Any:
        raise ValueError("no such group")

    class Failing:
        def eval(self, row: Any) -> Any:
            raise ValueError(f"no such row as {row}")

    groups = spark.range(3).groupBy("id").applyInPandas(causal(uid="failing")(failing), "id long")
    table = causal(uid="table")(udtf(Failing, returnType="id: long"))(rows(spark))
    for frame, said in ((groups, "no such group"), (table, "no such row")):
        with pytest.raises(Exception, match=said) as caught:
            frame.collect()
        text = str(caught.value)
        assert "_worker/pieces.py" not in text, text
        assert "run_group" not in text, text
        assert "_rows_of" not in text, text
