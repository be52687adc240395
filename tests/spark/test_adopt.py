"""`attach(adopt=…)`: programs of Spark's own, unchanged, whatever they imported before."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkTypeError
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.functions import arrow_udf, pandas_udf, udf
from pyspark.sql.group import GroupedData
from pyspark.sql.streaming import StatefulProcessor

import clonos
from clonos import CausalUDF, causal
from clonos.errors import ConfigError, NotRecordedWarning

pytestmark = pytest.mark.timeout(600)
cloudpickle.register_pickle_by_value(sys.modules[__name__])
OUTPUT = "id string, n long"


@pytest.fixture
def adopting(plain_spark: Any) -> Iterator[Any]:
    with clonos.attach(plain_spark, adopt=("udf", "transformWithState")) as session:
        yield session


def drawn(_n: Any) -> float:
    return random.random()


def of_series(n: pd.Series) -> pd.Series:
    return n + random.random()


def of_arrays(n: pa.Array) -> pa.Array:
    return pa.array([random.random()] * len(n))


def of_chunks(chunks: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for chunk in chunks:
        yield chunk + random.random()


def total(n: pd.Series) -> float:
    return float(n.sum())


def every_form() -> list[Any]:
    """Make a function in each form in which programs do."""
    return [
        udf(drawn),
        udf("double")(drawn),
        udf(returnType="double")(drawn),
        udf(drawn, "double", useArrow=False),
        udf(drawn, "double").asNondeterministic(),
        pandas_udf(of_series, "double"),
        pandas_udf("double")(of_series),
        pandas_udf(of_chunks, "double"),
        arrow_udf(of_arrays, "double"),
        arrow_udf(returnType="double")(of_arrays),
    ]


def test_scalar_functions_of_every_form_are_causal(adopting: Any) -> None:
    functions = every_form()
    assert all(isinstance(f, CausalUDF) for f in functions)
    # One of each kind: each has workers of its own.
    row, *_, series, _, chunks, _, arrays = functions
    columns = [
        f(sf.col("id")).alias(f"c{at}") for at, f in enumerate((row, series, chunks, arrays))
    ]
    with adopting.epoch("every kind"):
        rows = adopting.spark.range(0, 6, 1, 1).select(*columns)
        assert rows.collect() == rows.collect()


def test_what_is_no_column_is_refused_as_spark_does(adopting: Any) -> None:
    numbers = adopting.spark.range(3)
    keep, plus = udf(lambda names: names), udf(lambda a, b=0: a + b, "long")
    for attempt in (
        lambda: numbers.select(keep(["id"])),
        lambda: numbers.where(sf.col("id") > plus(1)),
        lambda: numbers.select(plus("id", 5)),
        lambda: pandas_udf(lambda s: s, "long")(4),
    ):
        with pytest.raises(PySparkTypeError) as refused:
            attempt()
        # As Spark 4.1 calls it, and 4.3.
        assert refused.value.getCondition() in {"NOT_COLUMN_OR_STR", "NOT_EXPECTED_TYPE"}
    assert numbers.select(plus("id", sf.lit(5))).collect() == [(5,), (6,), (7,)]


def test_other_kinds_stay_sparks(adopting: Any) -> None:
    spark = adopting.spark
    summed = pandas_udf(total, "double")
    assert not isinstance(summed, CausalUDF)
    df = spark.range(4)
    assert df.select(summed("id")).first()[0] == 6.0
    assert df.mapInPandas(lambda frames: frames, "id long").count() == 4
    assert df.groupBy("id").applyInPandas(lambda frame: frame, "id long").count() == 4
    with pytest.warns(NotRecordedWarning, match="stays plain"):
        assert not isinstance(udf(drawn, "interval", useArrow=False), CausalUDF)


def test_what_is_registered_is_causal(plain_spark: Any) -> None:
    before = udf(drawn, "double")
    with clonos.attach(plain_spark, adopt="udf") as session:
        assert not isinstance(before, CausalUDF)
        plain_spark.udf.register("of_lambda", lambda n: n + random.random(), "double")
        plain_spark.udf.register("of_udf", udf(drawn, "double"))
        plain_spark.udf.register("of_before", before)
        plain_spark.udf.register("of_group", pandas_udf(total, "double"))
        with pytest.raises(PySparkTypeError, match="CANNOT_SPECIFY_RETURN_TYPE_FOR_UDF"):
            plain_spark.udf.register("typed", udf(drawn, "double"), "double")
        with session.epoch("registered"):
            query = "select of_lambda(id), of_udf(id), of_before(id) from range(5)"
            assert plain_spark.sql(query).collect() == plain_spark.sql(query).collect()
        assert plain_spark.sql("select of_group(id) from range(3)").first()[0] == 3.0


def test_deterministic_functions_stand_where_sparks_do(adopting: Any) -> None:
    df = adopting.spark.range(4)
    next_one = udf(lambda n: n + 1, "long")
    other = df.withColumnRenamed("id", "k")
    assert df.join(other, next_one("id") == sf.col("k")).count() == 3
    assert df.select(sf.sum(next_one("id"))).first()[0] == 10
    lock = Unseen()
    held = udf(lambda n: n + lock.one, "long")
    assert [row[0] for row in df.select(held("id")).collect()] == [1, 2, 3, 4]


def test_a_function_is_declared_nondeterministic_where_it_stands(adopting: Any) -> None:
    marked = udf(drawn, "double")
    # What it returns is not looked at, as in programs that know PySpark's.
    marked.asNondeterministic()
    rows = adopting.spark.range(0, 6, 1, 1).select(marked(sf.lit(1)))
    assert len(set(rows.collect())) == 6


class Unseen:
    """Cannot be pickled with its state, so functions that hold one cannot be told apart."""

    one = 1

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return Unseen, ()


def test_a_causal_function_over_an_adopted_one_has_its_own_options(adopting: Any) -> None:
    @causal(uid="mine", record="services")
    @udf("double")
    def noted(_n: int) -> float:
        return clonos.random.random()

    assert (noted.uid, noted.returnType.simpleString()) == ("mine", "double")
    assert adopting.spark.range(3).select(noted("id")).count() == 3


def test_names_that_there_are_not_are_refused(plain_spark: Any) -> None:
    with pytest.raises(ConfigError, match=r"adopt='udtf'.*'udf', 'transformWithState'"):
        clonos.attach(plain_spark, adopt="udtf")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no list of names"):
        clonos.attach(plain_spark, adopt=3)  # type: ignore[arg-type]
    assert not isinstance(udf(drawn), CausalUDF)


def test_attaching_again_replaces_nothing_twice(plain_spark: Any) -> None:
    spark_own = GroupedData.transformWithState
    with clonos.attach(plain_spark, adopt=["transformWithState", "udf"]) as session:
        ours = GroupedData.transformWithState
        assert ours is not spark_own
        again = clonos.attach(plain_spark, adopt=("udf", "transformWithState"))
        assert again is session
        assert GroupedData.transformWithState is ours
        with clonos.attach(plain_spark.newSession(), adopt="udf") as other:
            assert not session.is_active
            assert GroupedData.transformWithState is spark_own
            made = udf(drawn, "double")
            assert isinstance(made, CausalUDF)
            assert other.spark.range(1).select(made("id")).count() == 1
        assert not isinstance(udf(drawn), CausalUDF)
    # As any causal function where nothing is attached.
    with pytest.warns(NotRecordedWarning, match=r"call clonos.attach\(spark\)"):
        assert plain_spark.range(2).select(made("id")).count() == 2


class Count(StatefulProcessor):
    """Counts the rows of a key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = (self.count.get() or (0,))[0] + sum(1 for _ in rows)
        self.count.update((count,))
        yield Row(id=key[0], n=count)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.count.update((initialState.n,))


class CountFrames(Count):
    """The same with frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        count = (self.count.get() or (0,))[0] + sum(len(frame) for frame in rows)
        self.count.update((count,))
        yield pd.DataFrame({"id": [key[0]], "n": [count]})


class Folder:
    """A source of files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def put(self, *ids: str) -> None:
        number = len(list(self.path.iterdir()))
        hidden = self.path / f".{number}"
        hidden.write_text("".join(json.dumps({"id": one}) + "\n" for one in ids))
        hidden.rename(self.path / f"{number}.json")

    def read(self, spark: Any) -> Any:
        return spark.readStream.schema("id string").json(str(self.path))


def run(df: Any, checkpoint: Path, each: Any = lambda batch: batch) -> list[tuple[Any, ...]]:
    """Run a stream over what there is; all its output."""
    found: list[tuple[Any, ...]] = []

    def keep(batch: Any, _number: int) -> None:
        found.extend(map(tuple, each(batch).collect()))

    writer = df.writeStream.outputMode("update").foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return sorted(found)


def counted(df: Any) -> Any:
    return df.groupBy("id").transformWithState(Count(), OUTPUT, "Update", "None")


def states(session: Any) -> set[str]:
    return {state.state.partition("@")[0] for state in session.stats().states}


@pytest.mark.parametrize("flavour", ["row", "pandas"])
def test_a_stateful_program_is_as_it_was(adopting: Any, tmp_path: Path, flavour: str) -> None:
    folder = Folder(tmp_path / "in")
    grouped = folder.read(adopting.spark).groupBy("id")
    if flavour == "row":
        df = grouped.transformWithState(Count(), OUTPUT, "Update", "None", None, "")
    else:
        df = grouped.transformWithStateInPandas(
            statefulProcessor=CountFrames(),
            outputStructType=OUTPUT,
            outputMode="Update",
            timeMode="None",
        )
    folder.put("a", "b", "a")
    assert run(df, tmp_path / "checkpoint") == [("a", 2), ("b", 1)]
    folder.put("a")
    assert run(df, tmp_path / "checkpoint") == [("a", 3)]
    name = Count if flavour == "row" else CountFrames
    assert states(adopting) == {f"{name.__module__}.{name.__qualname__}"}


def test_two_uses_of_a_class_have_states_of_their_own(adopting: Any, tmp_path: Path) -> None:
    """In one query, whichever of them has rows; the plan's order tells them apart."""
    left, right = Folder(tmp_path / "left"), Folder(tmp_path / "right")
    checkpoint = tmp_path / "checkpoint"

    def both() -> Any:
        sides = [
            counted(folder.read(adopting.spark)).withColumn("side", sf.lit(folder.path.name))
            for folder in (left, right)
        ]
        return sides[0].union(sides[1])

    left.put("a", "a")
    right.put("a")
    assert run(both(), checkpoint) == [("a", 1, "right"), ("a", 2, "left")]
    right.put("a")
    assert run(both(), checkpoint) == [("a", 2, "right")]
    left.put("a")
    assert run(both(), checkpoint) == [("a", 3, "left")]
    assert len(states(adopting)) == 2


def test_operators_in_a_row_and_partitions_run_together(adopting: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "in")
    df = counted(counted(folder.read(adopting.spark))).coalesce(1)
    for times in (1, 2):
        folder.put(*"abcdef")
        expected = [(key, times) for key in "abcdef"]
        assert run(df, tmp_path / "checkpoint") == expected


class Failing(Count):
    """Fails until it is mended."""

    is_mended = False

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if key[0] == "b" and not self.is_mended:
            raise LookupError(key[0])
        yield from super().handleInputRows(key, rows, timerValues)


class Renamed(Count):
    """The same by another name."""


def processed(df: Any, processor: StatefulProcessor) -> Any:
    return df.groupBy("id").transformWithState(processor, OUTPUT, "Update", "None")


def test_a_processor_that_was_mended_goes_on(adopting: Any, tmp_path: Path) -> None:
    folder, checkpoint = Folder(tmp_path / "in"), tmp_path / "checkpoint"
    folder.put("a", "a")
    processor = Failing()
    assert run(processed(folder.read(adopting.spark), processor), checkpoint) == [("a", 2)]
    folder.put("a", "b")
    with pytest.raises(Exception, match="LookupError: b"):
        run(processed(folder.read(adopting.spark), processor), checkpoint)
    processor.is_mended = True
    expected = [("a", 3), ("b", 1)]
    assert run(processed(folder.read(adopting.spark), processor), checkpoint) == expected


def test_a_class_that_was_renamed_does_not_begin_with_nothing(
    adopting: Any, tmp_path: Path
) -> None:
    folder, checkpoint = Folder(tmp_path / "in"), tmp_path / "checkpoint"
    folder.put("a")
    assert run(processed(folder.read(adopting.spark), Count()), checkpoint) == [("a", 1)]
    folder.put("a")
    with pytest.raises(Exception, match=r"STATE_LOST.*Renamed has no state"):
        run(processed(folder.read(adopting.spark), Renamed()), checkpoint)
    found = clonos.transform_with_state(
        *(folder.read(adopting.spark).groupBy("id"), Renamed(), OUTPUT, "Update", "None"),
        uid=f"{Count.__module__}.{Count.__qualname__}",
    )
    assert run(found, checkpoint) == [("a", 2)]


class Large(Count):
    """Holds so much that Spark would send it apart from the plan."""

    def __init__(self) -> None:
        self.held = random.randbytes(2 << 20)


def test_a_large_processor_is_sent_apart(adopting: Any) -> None:
    df = processed(adopting.spark.createDataFrame([("a",)], "id string"), Large())
    assert df.collect() == [Row(id="a", n=1)]


def test_in_a_batch_function_state_ends_with_its_query(adopting: Any, tmp_path: Path) -> None:
    """As Spark's own does there; that of `clonos.transform_with_state` goes on."""
    folder = Folder(tmp_path / "in")
    stream = folder.read(adopting.spark)
    for _ in range(2):
        folder.put("a", "a")
        assert run(stream, tmp_path / "checkpoint", counted) == [("a", 2)]
    assert states(adopting) == set()


def is_sparks(df: Any) -> bool:
    return "TransformWithState" in df._jdf.queryExecution().logical().toString()


def test_a_stream_with_an_initial_state_is_adopted(adopting: Any, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "in")
    folder.put("a", "b")
    initial = adopting.spark.createDataFrame([("a", 10)], OUTPUT).groupBy("id")
    grouped = folder.read(adopting.spark).groupBy("id")
    df = grouped.transformWithState(Count(), OUTPUT, "Update", "None", initial)
    assert not is_sparks(df)
    assert run(df, tmp_path / "checkpoint") == [("a", 11), ("b", 1)]


def test_where_nothing_is_recorded_state_is_sparks(plain_spark: Any, tmp_path: Path) -> None:
    with clonos.attach(plain_spark, adopt="transformWithState", guarantee="at_least_once"):
        df = counted(Folder(tmp_path / "in").read(plain_spark))
        assert is_sparks(df)
