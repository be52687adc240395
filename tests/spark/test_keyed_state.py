"""`transform_with_state` on real Spark, beside Spark's own operator: batch queries."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, IllegalArgumentException, PythonException
from pyspark.sql import functions as sf
from shown import (
    OUTPUT,
    PROVIDER,
    ROCKS_DB,
    ROWS,
    TYPES,
    Shown,
    ShownFrames,
    collected,
    ours,
    theirs,
)
from versions import since_42

import clonos
from clonos.errors import ConfigError

pytest.importorskip("google.protobuf", reason="Spark's own operator needs protobuf")
pytestmark = pytest.mark.timeout(600)
cloudpickle.register_pickle_by_value(sys.modules[__name__])
# Before Spark 4.2 its frames have columns of other widths.
PROCESSORS = [Shown(), pytest.param(ShownFrames(), marks=since_42)]


@pytest.fixture(autouse=True)
def _rocks_db(plain_spark: Any) -> None:
    plain_spark.conf.set(PROVIDER, ROCKS_DB)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("keys", [["id"], ["c", "id"], ["ID"]])
def test_a_batch_query_is_as_sparks(
    spark: Any, session: Any, processor: Any, keys: list[str]
) -> None:
    # What another key's null does to the type of a column is up to Spark's batches.
    rows = ROWS if processor.__class__ is Shown else [ROWS[0], ROWS[2]]
    grouped = spark.createDataFrame(rows, TYPES).groupBy(*keys)
    assert collected(ours(grouped, processor)) == collected(theirs(grouped, processor))


@pytest.mark.parametrize("processor", PROCESSORS)
def test_an_initial_state_is_as_sparks(spark: Any, session: Any, processor: Any) -> None:
    schema = "id string, n int, at timestamp"
    grouped = spark.createDataFrame([("a", 1, None), ("b", 2, None)], schema).groupBy("id")
    initial = spark.createDataFrame([("a", 5), ("z", 6)], "id string, q long").groupBy("id")
    expected = collected(theirs(grouped, processor, initialState=initial))
    assert collected(ours(grouped, processor, initial_state=initial)) == expected
    other = spark.createDataFrame([(1, 5)], "id int, q long")
    with pytest.raises(ConfigError, match="must have the types"):
        ours(grouped, processor, initial_state=(other, "id"))


def test_nulls_in_the_rows_of_one_key_leave_numbers_of_others_alone(
    spark: Any, session: Any
) -> None:
    grouped = spark.createDataFrame(ROWS, TYPES).groupBy("n")
    found = {row.id: row.what for row in ours(grouped, ShownFrames()).collect()}
    assert "'n': dtype('int64')" in found["1"]
    assert "'flag': dtype('bool')" in found["4"]
    assert "'n': dtype('float64')" in found["nan"]


def test_a_grouping_is_read_in_all_its_forms(spark: Any, session: Any) -> None:
    df = spark.createDataFrame([("a", 1, None), ("b", 2, None)], "id string, n int, at timestamp")
    odd = (sf.col("n") % 2).alias("odd")
    forms = [
        df.groupBy("id"),
        df.groupBy(df.id),
        df.groupBy(sf.col("id")),
        (df, "id"),
        (df, ["id"]),
    ]
    first, *others = [collected(ours(form, Shown())) for form in forms]
    assert all(other == first for other in others)
    computed = collected(ours(df.groupBy(odd, "id"), Shown()))
    # Rows have no column that only the grouping has.
    assert computed[0][1].startswith("((0, 'b'), [Row(id='b', n=2, at=None)]")
    for wrong in (df, df.groupBy(), "id", (df, [])):
        with pytest.raises(ConfigError):
            ours(wrong, Shown())


@pytest.mark.classic
def test_modes_are_refused_as_by_spark(spark: Any, session: Any) -> None:
    grouped = spark.createDataFrame([("a", 1)], "id string, n int").groupBy("id")
    with pytest.raises(IllegalArgumentException, match="STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE"):
        ours(grouped, Shown(), "sometimes")
    with pytest.raises(IllegalArgumentException, match=r"STREAMING_OUTPUT_MODE\.INVALID"):
        clonos.transform_with_state(grouped, Shown(), OUTPUT, "sometimes", "none")
    with pytest.raises(
        AnalysisException, match="CANNOT_ASSIGN_EVENT_TIME_COLUMN_WITHOUT_WATERMARK"
    ):
        ours(grouped, Shown(), "eventTime", event_time_column="id")


def test_what_a_processor_raises_arrives(spark: Any, session: Any) -> None:
    class Failing(Shown):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            raise LookupError(key[0])

    grouped = spark.createDataFrame([("a", 1)], "id string, n int").groupBy("id")
    with pytest.raises(PythonException, match="LookupError: a"):
        ours(grouped, Failing()).collect()


class Types(clonos.BatchProcessor):
    """Says what it is given."""

    state_schema = "at timestamp"

    def handle_batch(
        self, keys: pa.RecordBatch, rows: clonos.GroupedRows, state: pa.RecordBatch
    ) -> tuple[pa.Table, pa.RecordBatch]:
        what = f"{keys.schema.names} {rows.rows.schema.names} {rows['at'].type} {state['at'].type}"
        output = pa.table({"what": [what] * len(keys), "id": keys[0].cast(pa.string())})
        return output, pa.record_batch([rows.aggregate(at=("at", "max"))["at"]], ["at"])


def test_in_arrow_columns_are_as_spark_gives_them(spark: Any, session: Any) -> None:
    df = spark.createDataFrame([("a", 1, None), ("b", 2, None)], "id string, n int, at timestamp")
    odd = (sf.col("n") % 2).alias("odd")
    zone = spark.conf.get("spark.sql.session.timeZone")
    at = f"timestamp[us, tz={zone}]"

    def run(grouped: Any, **options: Any) -> Any:
        return clonos.transform_with_state(grouped, Types(), OUTPUT, "update", "none", **options)

    found = collected(run(df.groupBy(odd), flavour="arrow"))
    assert found == [(key, f"['odd'] ['id', 'n', 'at'] {at} {at}") for key in ("0", "1")]
    with pytest.raises(ConfigError, match="flavour='arrow'"):
        run(df.groupBy(odd))
    with pytest.raises(ConfigError, match=r"clonos\.BatchProcessor, which Shown is not"):
        clonos.transform_with_state(
            *(df.groupBy("id"), Shown(), OUTPUT, "update", "none"), flavour="arrow"
        )
    with pytest.raises(ConfigError, match="initial_state"):
        run(df.groupBy("id"), flavour="arrow", initial_state=df.groupBy("id"))
