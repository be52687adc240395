"""Causal functions of groups: each group is answered once, whatever fails and in whatever order."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql.functions import PandasUDFType, arrow_udf, pandas_udf
from pyspark.sql.types import DoubleType
from versions import SPARK

import clonos
from clonos import causal
from clonos.errors import ConfigError, NotRecordedWarning, ReplayDivergence

GROUPS = 7
SCHEMA = "k long, v double"
pytestmark = pytest.mark.timeout(480)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@causal
def frame(group: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": group["k"].head(1), "v": [random.random()]})


@causal
def keyed(key: Any, _group: Any) -> Any:
    return pd.DataFrame({"k": [key[0]], "v": [random.random()]})


@causal
def frames(key: tuple[Any, ...], groups: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for _group in groups:
        yield pd.DataFrame({"k": [key[0]], "v": [random.random()]})


@causal
def table(group: pa.Table) -> pa.Table:
    return pa.table({"k": group.column("k").slice(0, 1), "v": [random.random()]})


@causal
def batches(groups: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in groups:
        yield pa.RecordBatch.from_pydict({"k": batch["k"].slice(0, 1), "v": [random.random()]})


@causal
def pair(left: Any, _right: Any) -> Any:
    return pd.DataFrame({"k": left["k"].head(1), "v": [random.random()]})


@causal
def keyed_tables(key: Any, _left: Any, _right: Any) -> Any:
    return pa.table({"k": [key[0].as_py()], "v": [random.random()]})


@causal
@pandas_udf(DoubleType())
def aggregate(_values: pd.Series) -> float:
    return random.random()


@causal
@arrow_udf(DoubleType())
def arrow_aggregate(_values: pa.Array) -> float:
    return random.random()


@causal
def each_frame(partition: Any) -> Any:
    for rows in partition:
        yield rows.assign(v=[random.random() for _ in rows["k"]])[["k", "v"]]


@causal
def each_batch(partition: Any) -> Any:
    for rows in partition:
        drawn = [random.random() for _ in range(rows.num_rows)]
        yield pa.RecordBatch.from_pydict({"k": rows["k"], "v": drawn})


@causal(record="services")
def from_services(group: pd.DataFrame) -> pd.DataFrame:
    drawn = clonos.random.random() + clonos.call(random.random) + clonos.time()
    return pd.DataFrame({"k": group["k"].head(1), "v": [drawn]})


def grouped(df: Any) -> Any:
    return df.groupBy("k")


def neighbours() -> Any:
    return Window.partitionBy("k").orderBy("id").rowsBetween(-1, 1)


QUERIES: dict[str, Callable[[Any], Any]] = {
    "applyInPandas": lambda df: grouped(df).applyInPandas(frame, SCHEMA),
    "with the key": lambda df: grouped(df).applyInPandas(keyed, SCHEMA),
    "iterators of frames": lambda df: grouped(df).applyInPandas(frames, SCHEMA),
    "applyInArrow": lambda df: grouped(df).applyInArrow(table, SCHEMA),
    "iterators of batches": lambda df: grouped(df).applyInArrow(batches, SCHEMA),
    "cogroup": lambda df: grouped(df).cogroup(grouped(df)).applyInPandas(pair, SCHEMA),
    "cogroup in Arrow": lambda df: (
        grouped(df).cogroup(grouped(df)).applyInArrow(keyed_tables, SCHEMA)
    ),
    "aggregate": lambda df: grouped(df).agg(aggregate("id").alias("v")),
    "Arrow aggregate": lambda df: grouped(df).agg(arrow_aggregate("id").alias("v")),
    "window": lambda df: df.select("id", aggregate("id").over(Window.partitionBy("k"))),
    "bounded window": lambda df: df.select("id", arrow_aggregate("id").over(neighbours())),
    "services": lambda df: grouped(df).applyInPandas(from_services, SCHEMA),
}

if SPARK >= (4, 2):

    @causal
    @pandas_udf(DoubleType())
    def iterator_aggregate(values: Iterator[pd.Series]) -> float:
        return random.random() + 0 * sum(len(series) for series in values)

    QUERIES["aggregate of batches"] = lambda df: grouped(df).agg(
        iterator_aggregate("id").alias("v")
    )


def rows(spark: Any, partitions: int = 4) -> Any:
    return spark.range(0, 40, 1, partitions).selectExpr("id", f"id % {GROUPS} as k")


def values(df: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


class Again(Exception):
    """The epoch is to be run again: within one run, a query over other rows is another query."""


@pytest.mark.parametrize("name", QUERIES)
def test_a_group_is_answered_once(spark: Any, session: Any, name: str) -> None:
    with suppress(Again), session.epoch(name):
        first = values(QUERIES[name](rows(spark)))
        raise Again
    with session.epoch(name):
        # The rows of a group come in another order.
        again = values(QUERIES[name](rows(spark).repartition(5, "id")))
    assert len(first) >= GROUPS
    assert first == again


@pytest.mark.parametrize("name", ["mapInPandas", "mapInArrow"])
def test_a_partition_is_answered_once(spark: Any, session: Any, name: str) -> None:
    function = each_frame if name == "mapInPandas" else each_batch
    with session.epoch(name):
        first = values(getattr(rows(spark), name)(function, SCHEMA))
        again = values(getattr(rows(spark), name)(function, SCHEMA))
    assert len(first) == 40
    assert first == again


def test_groups_are_found_in_other_partitions(spark: Any, session: Any) -> None:
    with session.epoch("partitions"):
        first = values(grouped(rows(spark)).applyInPandas(frame, SCHEMA))
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        try:
            again = values(grouped(rows(spark)).applyInPandas(frame, SCHEMA))
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", "3")
    assert first == again


def test_a_group_with_other_rows_is_another_group(spark: Any, session: Any) -> None:
    with suppress(Again), session.epoch("changed"):
        whole = rows(spark).where("id != 99")
        first = dict(values(grouped(whole).applyInPandas(frame, SCHEMA)))
        raise Again
    with session.epoch("changed"):
        changed = rows(spark).where("id != 0")
        again = dict(values(grouped(changed).applyInPandas(frame, SCHEMA)))
    assert [key for key in first if first[key] != again[key]] == [0]


def test_groups_are_told_apart_by_the_keys_of_their_maps(spark: Any, session: Any) -> None:
    days = spark.range(3).selectExpr("id", "map(array('x', 'y', 'z')[int(id)], 1) as m")

    @causal(uid="maps")
    @pandas_udf("string")
    def seen(maps: pd.Series) -> str:
        return repr(maps.tolist())

    column = seen("m").alias("v")
    with session.epoch("maps"):
        answers = [days.where(f"id = {day}").groupBy().agg(column).first().v for day in range(3)]
    assert answers == [repr([{key: 1}]) for key in "xyz"]


def test_groups_before_an_exception_are_kept(spark: Any, session: Any, tmp_path: Path) -> None:
    calls, failed = str(tmp_path / "calls"), str(tmp_path / "failed")

    @causal(uid="fails-once")
    def ask(key: Any, _group: Any) -> Any:
        with Path(calls).open("a") as file:
            file.write(f"{key[0]}\n")
        if key[0] == 5 and not Path(failed).exists():
            Path(failed).touch()
            raise TimeoutError
        return pd.DataFrame({"k": [key[0]], "v": [random.random()]})

    answers = values(rows(spark).coalesce(1).groupBy("k").applyInPandas(ask, SCHEMA))
    assert [key for key, _ in answers] == list(range(GROUPS))
    asked = sorted(Path(calls).read_text().split())
    assert asked == ["0", "1", "2", "3", "4", "5", "5", "6"]


def test_groups_before_a_killed_worker_are_kept(spark: Any, session: Any, tmp_path: Path) -> None:
    calls, died = str(tmp_path / "calls"), str(tmp_path / "died")

    @causal(uid="dies-once")
    def ask(key: Any, _group: Any) -> Any:
        if key[0] == 5 and not Path(died).exists():
            Path(died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with Path(calls).open("a") as file:
            file.write(f"{key[0]}\n")
        return pd.DataFrame({"k": [key[0]], "v": [random.random()]})

    answers = values(rows(spark).coalesce(1).groupBy("k").applyInPandas(ask, SCHEMA))
    assert Path(died).exists()
    assert [key for key, _ in answers] == list(range(GROUPS))
    assert sorted(Path(calls).read_text().split()) == [str(key) for key in range(GROUPS)]


def test_equal_groups_of_an_aggregate_need_their_key(spark: Any, session: Any) -> None:
    equal = spark.range(0, 40, 1, 4).selectExpr(f"id % {GROUPS} as k", "1 as one")

    def asked(turned: int) -> list[tuple[Any, ...]]:
        """One query, of which the number decides which group comes to which task."""
        groups = equal.where("k > 4").selectExpr(f"{turned} - k as turned", "k", "one")
        key = aggregate("one", row_key="k")
        return values(groups.groupBy("turned", "k").agg(key).drop("turned"))

    with suppress(Again), session.epoch("keyed"):
        first = asked(0)
        raise Again
    with session.epoch("keyed"):
        again = asked(GROUPS)
    assert first == again
    assert len({value for _, value in first}) == 2


def test_changed_code_is_refused(spark: Any, session: Any) -> None:
    @causal(uid="changed")
    def before(_group: Any) -> Any:
        return pd.DataFrame({"k": [1], "v": [0.5]})

    @causal(uid="changed")
    def after(_group: Any) -> Any:
        return pd.DataFrame({"k": [2], "v": [0.5]})

    session.spark.sparkContext.setLocalProperty("clonos.epoch", "code")
    try:
        grouped(rows(spark)).applyInPandas(before, SCHEMA).collect()
        with pytest.raises(PySparkException, match=ReplayDivergence.__name__):
            grouped(rows(spark)).applyInPandas(after, SCHEMA).collect()
    finally:
        session.spark.sparkContext.setLocalProperty("clonos.epoch", "")


@pytest.mark.classic
def test_a_plan_made_before_attach_says_that_it_is_not_recorded(plain_spark: Any) -> None:
    with pytest.warns(NotRecordedWarning, match="frame is not recorded"):
        grouped(rows(plain_spark)).applyInPandas(frame, SCHEMA)


def test_kinds_that_cannot_be_causal_say_what_to_use(spark: Any) -> None:
    plain = frame.__wrapped__
    old = pandas_udf(plain, SCHEMA, PandasUDFType.GROUPED_MAP)
    with pytest.raises(ConfigError, match=r"SQL_GROUPED_MAP_PANDAS_UDF.*applyInPandas\(fn"):
        causal(old)
    with pytest.raises(ConfigError, match=r"is a class.*@udtf"):
        causal(type("Handler", (), {"eval": print}))
