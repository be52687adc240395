"""``per="value"``: one answer per distinct argument and epoch, whatever task asks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from epochs import again, values
from pyspark import cloudpickle
from pyspark.sql import functions as sf
from pyspark.sql.functions import arrow_udf, pandas_udf, udf
from pyspark.sql.types import DoubleType

from clonos import _pickled, _walk, causal
from clonos.errors import ConfigError

pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def note(file: Path, *arguments: Any) -> float:
    """Answer of a service that never gives the same twice, and keeps a list of its calls."""
    with file.open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    return random.random()


def calls(file: Path) -> Counter[str]:
    """How often each question was asked."""
    return Counter(file.read_text().splitlines()) if file.exists() else Counter()


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    return tmp_path / "calls.txt"


def test_nothing_is_said_of_a_program_in_which_nothing_is_wrong(
    session: Any, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ten = causal("long", per="value")(lambda n: 10 * n)
    rows = spark.range(0, 40, 1, 2).select(ten("id").alias("n")).collect()
    assert sorted(row.n for row in rows) == list(range(0, 400, 10))
    assert [record.message for record in caplog.records if record.name == "clonos"] == []


def lookup(asked: Path, **options: Any) -> Any:
    """A causal function with one answer per distinct argument."""

    @causal("double", per="value", **options)
    def look_up(key: Any) -> float:
        return note(asked, key)

    return look_up


def keys(spark: Any, rows: int = 100, distinct: int = 5, partitions: int = 4) -> Any:
    return spark.range(0, rows, 1, partitions).select("id", (sf.col("id") % distinct).alias("key"))


def answers(rows: list[Any]) -> dict[Any, Any]:
    """The answer of each key, of which there must be one only."""
    found: dict[Any, set[Any]] = {}
    for row in rows:
        found.setdefault(row.key, set()).add(row.v)
    assert all(len(values) == 1 for values in found.values()), found
    return {key: values.pop() for key, values in found.items()}


def test_a_hundred_rows_with_five_arguments_in_four_partitions_make_five_calls(
    spark: Any, asked: Path
) -> None:
    rows = keys(spark).select("key", lookup(asked)("key").alias("v")).collect()
    assert len(rows) == 100
    assert len(answers(rows)) == 5
    assert sorted(calls(asked).values()) == [1] * 5


def test_an_epoch_asks_once_and_the_next_again(spark: Any, session: Any, asked: Path) -> None:
    scored = keys(spark).select("key", lookup(asked)("key").alias("v"))
    with session.epoch("first"):
        first = answers(scored.collect())
        assert answers(scored.repartition(3).collect()) == first
    with session.epoch("second"):
        second = answers(scored.collect())
    assert set(calls(asked).values()) == {2}
    assert all(second[key] != first[key] for key in first)


@pytest.mark.parametrize("name", ["arrow.useLargeVarTypes", "pyspark.binaryAsBytes"])
def test_settings_that_decide_on_types_may_change(spark: Any, session: Any, name: str) -> None:
    setting = f"spark.sql.execution.{name}"
    before = spark.conf.get(setting)

    @causal("string", per="value", uid="typed")
    def typed(raw: Any) -> str:
        return f"{type(raw).__name__} {random.random()}"

    def asked(rows: int) -> dict[Any, Any]:
        raw = spark.range(rows).selectExpr("id as key", "cast(string(id) as binary) as raw")
        return answers(raw.select("key", typed("raw").alias("v")).collect())

    with session.epoch(f"settings {name}"):
        first = asked(4)
        spark.conf.set(setting, "false" if before == "true" else "true")
        try:
            other = asked(5)
            assert asked(5) == other
        finally:
            spark.conf.set(setting, before)
        assert asked(4) == first
    types = {value.split()[0] for value in (*first.values(), *other.values())}
    assert len(types) == (2 if name == "pyspark.binaryAsBytes" else 1)


def test_nulls_several_arguments_and_types_are_told_apart(spark: Any, asked: Path) -> None:
    @causal("double", per="value")
    def of_two(left: Any, right: Any) -> float:
        return note(asked, str(left), str(right))

    frame = spark.createDataFrame(
        [("a", 1), ("a", None), (None, 1), (None, None), ("a", 1), ("1", None)] * 5,
        "left string, right long",
    )
    rows = frame.select(sf.struct("left", "right").alias("key"), of_two("left", "right").alias("v"))
    assert len(answers(rows.collect())) == 5
    assert sorted(calls(asked).values()) == [1] * 5
    dates = sf.date_from_unix_date(sf.col("right").cast("int"))
    both = frame.select(of_two("left", "right").alias("v")).union(
        frame.select(of_two("left", dates))
    )
    assert both.distinct().count() == 10


def test_it_may_stand_in_a_join_condition(spark: Any, asked: Path) -> None:
    @causal("boolean", per="value")
    def is_pair(left: int, right: int) -> bool:
        note(asked, left, right)
        return left == right

    left, right = keys(spark, 4, 4), keys(spark, 6, 6)
    joined = left.join(right, is_pair(left["key"], right["key"]))
    assert joined.count() == 4
    assert set(calls(asked).values()) == {1}


def test_it_may_stand_over_and_under_an_aggregate(spark: Any, asked: Path) -> None:
    look_up = lookup(asked)
    under = keys(spark).groupBy(look_up("key").alias("v")).agg(sf.count("*").alias("n")).collect()
    assert [row.n for row in under] == [20] * 5
    over = keys(spark).groupBy("key").agg(look_up(sf.sum("id")).alias("v")).collect()
    assert len(over) == 5
    assert set(calls(asked).values()) == {1}


def test_a_filter_that_is_evaluated_twice_sees_one_answer(spark: Any, asked: Path) -> None:
    scored = keys(spark).withColumn("v", lookup(asked)("key")).where("v < 0.5")
    rows = scored.select("key", "v").collect()
    assert all(row.v < 0.5 for row in rows)
    other = scored.join(scored.select("key").distinct(), "key").collect()
    assert all(row.v < 0.5 for row in other)


def test_two_functions_do_not_share(spark: Any, asked: Path) -> None:
    def make(number: int) -> Any:
        @causal("double", per="value")
        def answer(key: Any) -> float:
            return note(asked, number, key) + number

        return answer

    one, two = make(10), make(20)
    row = keys(spark, 1, 1).select(one("key").alias("one"), two("key").alias("two")).first()
    assert 10 <= row.one < 11
    assert 20 <= row.two < 21


@pytest.mark.parametrize("declared", [True, False], ids=["udf", "function"])
def test_functions_that_hold_two_tables_do_not_share(
    spark: Any, session: Any, declared: bool
) -> None:
    def within(table: Any) -> Any:
        get = table.get
        return causal(udf(get)) if declared else causal("string", per="value")(get)

    def reads(broadcast: Any) -> Any:
        return causal("string", per="value")(lambda key: broadcast.value[key])

    tables = [{"a": f"{n}a", "b": f"{n}b"} for n in (1, 2)]
    columns = [within(table) for table in tables]
    columns += [reads(spark.sparkContext.broadcast(table)) for table in tables]
    words = spark.createDataFrame([("a",), ("b",)], "word string")
    expected = [(f"1{w}", f"2{w}", f"1{w}", f"2{w}") for w in "ab"]
    with session.epoch("tables"):
        rows = words.select(*(column("word").alias("v") for column in columns)).collect()
        assert sorted(map(tuple, rows)) == expected
        for column, answers in zip(columns, zip(*expected, strict=True), strict=True):
            in_turn = words.select(column("word").alias("v")).collect()
            assert sorted(row.v for row in in_turn) == list(answers)


@pytest.mark.parametrize("kind", ["async", "pandas", "arrow"])
def test_other_kinds_are_given_distinct_rows_only(spark: Any, asked: Path, kind: str) -> None:
    async def awaited(key: int) -> float:
        await asyncio.sleep(0.001)
        return note(asked, key)

    def of_series(of: pd.Series) -> pd.Series:
        return of.map(lambda key: note(asked, key))

    def of_array(of: pa.Array) -> pa.Array:
        assert len(pc.unique(of)) == len(of)
        return pa.array([note(asked, key) for key in of.to_pylist()])

    kinds: dict[str, Callable[[], Any]] = {
        "async": lambda: causal("double", per="value", concurrency=4)(awaited),
        "pandas": lambda: causal(per="value")(pandas_udf(of_series, DoubleType())),
        "arrow": lambda: causal(per="value")(arrow_udf(of_array, DoubleType())),
    }
    rows = keys(spark).select("key", kinds[kind]()("key").alias("v")).collect()
    assert len(answers(rows)) == 5
    assert sorted(calls(asked).values()) == [1] * 5


def test_an_exception_is_not_recorded_and_the_question_is_handed_on(
    spark: Any, asked: Path, tmp_path: Path
) -> None:
    failed = tmp_path / "failed"

    @causal("double", per="value")
    def once_bitten(key: int) -> float:
        time.sleep(0.3)  # so that others wait
        if key == 3 and not failed.exists():
            failed.touch()
            raise ConnectionError("try again")
        return note(asked, key)

    rows = keys(spark).select("key", once_bitten("key").alias("v")).collect()
    assert len(answers(rows)) == 5
    assert failed.exists()


def test_a_worker_that_is_killed_hands_on_its_questions(
    spark: Any, asked: Path, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"

    @causal("double", per="value")
    def lethal(key: int) -> float:
        time.sleep(0.3)
        if key == 3 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return note(asked, key)

    begun = time.monotonic()
    rows = keys(spark).select("key", lethal("key").alias("v")).collect()
    assert len(answers(rows)) == 5
    # Nobody had to wait until the silence of the dead was long enough.
    assert time.monotonic() - begun < 50
    assert killed.exists()


RESTARTED = """
import sys
from pathlib import Path
from pyspark import cloudpickle
from pyspark.sql import SparkSession
sys.path.insert(0, {tests!r})
import test_value as tests
import clonos
cloudpickle.register_pickle_by_value(tests)
builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "OFF").getOrCreate()
session = clonos.attach(spark, checkpoint_dir={logs!r})
scored = tests.keys(spark, 100, 5, int(sys.argv[1]))
scored = scored.select("key", tests.lookup(Path({asked!r}), uid="lookup")("key").alias("v"))
with session.epoch("nightly"):
    values = tests.answers(scored.collect())
    print("ANSWERS", sorted(values.items()), flush=True)
    if sys.argv[2] == "die":
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
session.stop()
spark.stop()
"""


@pytest.mark.classic
def test_a_restarted_driver_finds_the_answers_again(tmp_path: Path, asked: Path) -> None:
    program = RESTARTED.format(
        tests=str(Path(__file__).parent), logs=str(tmp_path / "logs"), asked=str(asked)
    )
    seen = []
    for partitions, end in (("4", "die"), ("3", "live")):
        command = [sys.executable, "-c", program, partitions, end]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        seen += [line for line in ran.stdout.splitlines() if line.startswith("ANSWERS")]
    assert len(seen) == 2, ran.stderr[-3000:]
    assert seen[0] == seen[1]
    assert sorted(calls(asked).values()) == [1] * 5


def test_a_pyspark_udf_is_per_value_as_it_declares(spark: Any, asked: Path) -> None:
    @causal
    @udf("double")
    def declared(key: int) -> float:
        return note(asked, key)

    assert declared.deterministic
    assert keys(spark).select(declared("key")).distinct().count() == 5
    assert sorted(calls(asked).values()) == [1] * 5
    for other in (declared.asNondeterministic(), causal(udf(len).asNondeterministic())):
        assert not other.deterministic
    assert keys(spark).select(declared.asNondeterministic()("key")).distinct().count() == 100


def of_batches(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    yield from batches


def test_what_cannot_be_kept_is_refused_by_name(spark: Any) -> None:
    def none() -> float:
        return 1.0

    with pytest.raises(ConfigError, match="no arguments"):
        causal("double", per="value")(none)()
    with pytest.raises(ConfigError, match="row_key"):
        causal("string", per="value")(lambda key: key)("id", row_key="id")
    with pytest.raises(ConfigError, match="record='result'"):
        causal("double", per="value", record="services")(none)
    with pytest.raises(ConfigError, match="pandas_iter"):
        causal(per="value")(pandas_udf(of_batches, DoubleType()))
    with pytest.raises(ConfigError, match="per="):
        causal("double", per="column")(none)


def test_what_is_too_large_to_be_told_apart_needs_a_version(
    spark: Any, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.arange(5_000)

    def number(key: int) -> int:
        return int(numbers[key])

    monkeypatch.setattr(_walk, "BYTES_MAX", 10_000)
    monkeypatch.setattr(_pickled, "BYTES_MAX", 10_000)
    with pytest.raises(ConfigError, match=r"holds a numpy.ndarray.*setup=.*code_version="):
        causal(udf(number, "int"))("id")
    versioned = causal("int", per="value", code_version="1")(number)
    assert spark.range(3).select(versioned("id")).collect() == [(0,), (1,), (2,)]
    assert spark.range(3).select(causal("int")(number)("id")).collect() == [(0,), (1,), (2,)]


def test_a_change_under_a_uid_is_refused_by_the_name_that_people_gave(session: Any) -> None:
    def run(more: int) -> list[Any]:
        score = causal("long", uid="by value", per="value")(lambda key: key + more)
        return values(session.spark.range(3).select(score("id")))

    with pytest.raises(Exception, match=r'operator \\?"by value\\?" of query'):
        again(session, lambda: run(1), lambda: run(2))
    session.commit("batch", "again")


@pytest.mark.classic
def test_a_run_that_asks_again_as_its_function_changed_says_what_of_it(
    session: Any, asked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def answers(run: str) -> list[Any]:
        def look_up(key: int) -> float:
            return note(asked, run, key)

        score = causal("double", per="value")(look_up)
        return values(session.spark.range(3).select("id", score("id")))

    same, other = lambda: answers("one"), lambda: answers("two")
    first, second = again(session, same, same)
    assert first == second
    # Workers of sessions before may knock at the agent's door besides.
    assert not [m for m in caplog.messages if "of which this changed" in m]
    first, second = again(session, same, other)
    assert first != second
    (message,) = [m for m in caplog.messages if "of which this changed" in m]
    assert "look_up" in message
    assert message.count("of which this changed: variable run") == 1


def test_one_name_over_two_types_is_two_functions(session: Any) -> None:
    numbers = session.spark.range(3)
    score = causal("int", uid="score", per="value")(lambda a: int(a) + 1)
    wide = causal("bigint", uid="score", per="value")(lambda a: int(a) + 1)
    with session.epoch("two types"):
        both = numbers.select(score("id").alias("x"), score(a="id").alias("y")).collect()
        assert sorted(both) == [(1, 1), (2, 2), (3, 3)]
        assert sorted(numbers.select(wide("id").alias("x")).collect()) == [(1,), (2,), (3,)]
