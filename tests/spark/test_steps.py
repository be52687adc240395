"""Epochs of several steps that are run again: each step finds its answers, and no other's."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cuts import unseen
from pyspark import cloudpickle
from pyspark.errors import PySparkException

from clonos import causal

pytestmark = pytest.mark.timeout(600)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@causal("double", uid="drawn")
def drawn(_x: Any) -> float:
    return random.random()


def values(df: Any) -> list[list[Any]]:
    return sorted(map(list, df.collect()))


def of_numbers(spark: Any) -> Any:
    return values(spark.range(10).select("id", drawn("id")))


def of_others(spark: Any) -> Any:
    renamed = spark.range(5, 15).withColumnRenamed("id", "number")
    return values(renamed.select("number", drawn("number")))


def of_orders(spark: Any) -> Any:
    """Another query, with keys that the first has too."""
    orders = spark.range(10).selectExpr("id AS key", "id * 7 AS customer")
    return values(orders.select("key", drawn("key")))


def of_rows(spark: Any) -> Any:
    """One query over two tables that each run makes anew."""
    found = []
    for first in (0, 5):
        made = spark.createDataFrame([(n,) for n in range(first, first + 10)], "id long")
        found.append(values(made.select("id", drawn("id"))))
    return found


def of_tables(spark: Any) -> Any:
    """One query over two tables, of which the first is empty."""
    tables = [spark.createDataFrame(rows, "id int") for rows in ([], [(1,), (2,)])]
    return [values(table.select("id", drawn("id"))) for table in tables]


def of_lists(*firsts: int) -> Callable[[Any], Any]:
    """One query over a table that the program makes for each of some numbers."""

    def asked(spark: Any) -> Any:
        tables = [spark.createDataFrame([(n,) for n in range(f, f + 5)], "id int") for f in firsts]
        return [values(table.select("id", drawn("id"))) for table in tables]

    return asked


two_lists, last_lists = of_lists(0, 10), of_lists(10, 20)


def cut(at: int) -> Callable[[Any], Any]:
    """Rows of two lists, in a task each."""

    def asked(spark: Any) -> Any:
        context = spark.sparkContext
        parts = [
            context.parallelize([(n,) for n in part], 1) for part in (range(at), range(at, 40))
        ]
        table = spark.createDataFrame(context.union(parts), "id long")
        return values(table.select("id", drawn("id")))

    return asked


def cut_unseen(at: int) -> Callable[[Any], Any]:
    """What is said of rows in two tasks if they are refused."""

    def asked(spark: Any) -> Any:
        try:
            return len(values(unseen(spark, at, 40).select("id", drawn("id"))))
        except PySparkException as error:
            return "rows have moved" in str(error)

    return asked


cut_late, cut_early = cut(30), cut(10)
unseen_late, unseen_early = cut_unseen(30), cut_unseen(10)


def of_days(*days: int) -> Callable[[Any], Any]:
    """One query over each of some days."""

    def asked(spark: Any) -> Any:
        numbers = spark.range(100).selectExpr("id", "id % 5 AS day")
        return [values(numbers.where(f"day = {day}").select("id", drawn("id"))) for day in days]

    return asked


first_days, third_day, all_days = of_days(1, 2), of_days(3), of_days(1, 2, 3)


PROGRAM = """
import json, os, sys
from pyspark import cloudpickle
from pyspark.sql import SparkSession
sys.path.insert(0, {tests!r})
import test_steps as tests
import clonos
cloudpickle.register_pickle_by_value(tests)
builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "OFF").getOrCreate()
session = clonos.attach(spark, checkpoint_dir={logs!r})
with session.epoch("nightly"):
    print("ANSWERS", json.dumps([getattr(tests, step)(spark) for step in sys.argv[2:]]), flush=True)
    if sys.argv[1] == "die":
        os._exit(9)
session.stop()
spark.stop()
"""


def run(folder: Path, end: str, *steps: str) -> list[Any]:
    program = PROGRAM.format(tests=str(Path(__file__).parent), logs=str(folder / "logs"))
    command = [sys.executable, "-c", program, end, *steps]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    told = [line for line in ran.stdout.splitlines() if line.startswith("ANSWERS")]
    assert told, ran.stderr[-3000:]
    found: list[Any] = json.loads(told[0].removeprefix("ANSWERS"))
    return found


def test_steps_with_equal_keys_are_found_again_by_a_restarted_driver(tmp_path: Path) -> None:
    steps = ("of_numbers", "of_others", "of_tables", "of_rows")
    assert run(tmp_path, "die", *steps) == run(tmp_path, "live", *steps)


def test_days_that_are_done_in_turns_are_all_found_again(tmp_path: Path) -> None:
    ((one, two),) = run(tmp_path, "die", "first_days")
    ((three,),) = run(tmp_path, "die", "third_day")
    assert run(tmp_path, "live", "all_days") == [[one, two, three]]


def test_rows_that_moved_unseen_are_refused_by_a_restarted_driver(tmp_path: Path) -> None:
    assert run(tmp_path, "die", "unseen_late") == [40]
    assert run(tmp_path, "die", "unseen_early") == [True]


def test_rows_of_lists_that_moved_are_found_by_a_restarted_driver(tmp_path: Path) -> None:
    first = run(tmp_path, "die", "cut_late")
    assert run(tmp_path, "die", "cut_early") == first


def test_lists_that_are_done_are_left_out(tmp_path: Path) -> None:
    ((_, second),) = run(tmp_path, "die", "two_lists")
    ((found, third),) = run(tmp_path, "live", "last_lists")
    assert found == second
    assert [row[0] for row in third] == list(range(20, 25))


def test_a_step_that_is_skipped_leaves_its_answers_to_nobody(tmp_path: Path) -> None:
    (first,) = run(tmp_path, "die", "of_numbers")
    second, third = run(tmp_path, "live", "of_orders", "of_numbers")
    assert third == first
    assert not {row[1] for row in first} & {row[1] for row in second}


@pytest.mark.parametrize("other", ["a selection", "a table"])
def test_a_batch_in_which_one_function_is_asked_twice_comes_through(
    spark: Any, session: Any, tmp_path: Path, other: str
) -> None:
    spark.range(10).write.parquet(str(tmp_path / "in"))
    seen: list[Any] = []

    def write(batch: Any, _number: int) -> None:
        first = values(batch.select("id", drawn("id")))
        table = batch.where("id > 3") if other == "a selection" else spark.range(6)
        seen.append([first, values(table.select("id", drawn("id")))])
        if len(seen) == 1:
            raise KeyError

    def start() -> None:
        lines = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
        query = (
            lines.writeStream.foreachBatch(session.foreach_batch(write))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="KeyError"):
        start()
    start()
    assert seen[0] == seen[1]


def test_blocks_of_one_epoch_that_are_open_at_once_are_one(spark: Any, session: Any) -> None:
    numbers = spark.range(10)
    with session.epoch("night"):
        first = of_numbers(spark)
        with session.epoch("night"):
            assert of_numbers(spark) == first
        assert of_numbers(spark) == first
        left = threading.Thread(target=in_epoch, args=(session, numbers.count))
        left.start()
        left.join()
        assert of_numbers(spark) == first
    with session.epoch("night"):
        assert of_numbers(spark) != first


def test_an_epoch_of_which_a_block_raised_is_not_committed(spark: Any, session: Any) -> None:
    with session.epoch("night"):
        first = of_numbers(spark)
        with pytest.raises(ZeroDivisionError):
            in_epoch(session, lambda: 1 / 0)
    with session.epoch("night"):
        assert of_numbers(spark) == first


def in_epoch(session: Any, work: Callable[[], Any]) -> None:
    with session.epoch("night"):
        work()
