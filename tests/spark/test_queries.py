"""Which query a function is used in: two that are nearly the same, and one that is made again."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from epochs import Failed, again, drawn, fail, values
from pyspark import cloudpickle
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceReader

import clonos
from clonos import causal

ROWS = 40
pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def answers(rows: list[tuple[Any, ...]]) -> set[float]:
    return {row[1] for row in rows}


def below(n: int) -> Any:
    """Plain function of one name, whatever it does."""
    return sf.udf(lambda x: (x + n) % 20, "long")


def by_a_function(spark: Any, n: int) -> Any:
    return spark.range(20).select("id", below(n)("id").alias("c"))


def by_an_operator(spark: Any, n: int) -> Any:
    def moved(frames: Any) -> Any:
        for frame in frames:
            yield frame.assign(c=(frame["id"] + n) % 20)

    return spark.range(20).mapInPandas(moved, "id long, c long")


def by_a_column_of_many(spark: Any, n: int) -> Any:
    others = [(sf.col("id") + i).alias(f"c{i}") for i in range(30)]
    return spark.range(20).select("id", *others, ((sf.col("id") + n) % 20).alias("c"))


@pytest.mark.parametrize("of", [by_a_function, by_an_operator, by_a_column_of_many])
def test_queries_that_differ_in_one_place_below_are_two_uses(
    spark: Any, session: Any, of: Callable[[Any, int], Any]
) -> None:
    def in_turn() -> list[Any]:
        return [values(of(spark, n).select("id", drawn("c"))) for n in (0, 7)]

    first, second = again(session, in_turn)
    assert first == second
    assert not answers(first[0]) & answers(first[1])


def test_a_file_that_is_overwritten_is_another_table(
    spark: Any, session: Any, tmp_path: Any
) -> None:
    def written(n: int) -> Any:
        table = spark.range(20).select("id", ((sf.col("id") + n) % 20).alias("c"))
        table.write.mode("overwrite").parquet(str(tmp_path / "table"))
        return values(spark.read.parquet(str(tmp_path / "table")).select("id", drawn("c")))

    with session.epoch("overwritten"):
        first, second = written(0), written(7)
    assert not answers(first) & answers(second)


def test_one_use_over_two_derived_columns_is_two_uses_in_sql(spark: Any, session: Any) -> None:
    spark.udf.register("drawn", drawn)
    spark.range(20).createOrReplaceTempView("numbers")

    def derived(n: int) -> list[Any]:
        below = f"SELECT id, (id + {n}) % 20 AS c FROM numbers"
        return values(spark.sql(f"SELECT id, drawn(c) FROM ({below}) t"))

    with session.epoch("derived"):
        first, second, third = (derived(n) for n in (0, 7, 0))
    assert first == third
    assert not answers(first) & answers(second)


def test_a_column_over_two_derived_columns_is_two_uses(spark: Any, session: Any) -> None:
    column = drawn("c")

    def derived(n: int, rows: str = "id >= 0") -> list[Any]:
        table = spark.range(20).selectExpr("id", f"(id + {n}) % 20 AS c")
        return values(table.where(rows).select("id", column))

    with session.epoch("derived"):
        first, second, some = derived(0), derived(7), derived(0, "id > 10")
    assert not answers(first) & answers(second)
    # The same table, if fewer rows of it.
    assert some == first[11:]


def test_a_frame_that_is_ordered_by_what_lies_deeper_has_its_answers(
    spark: Any, session: Any
) -> None:
    table = spark.range(0, ROWS, 1, 2).selectExpr("id", "-id AS other")
    answered = table.select("id").where("id >= 0").select("id", drawn("id"))
    with session.epoch("ordered"):
        assert values(answered) == values(answered.orderBy(table["other"]))


def test_a_common_table_that_is_asked_twice_is_asked_once(spark: Any, session: Any) -> None:
    spark.udf.register("drawn", drawn)
    spark.range(ROWS).createOrReplaceTempView("numbers")
    query = "WITH t AS (SELECT * FROM numbers) SELECT id, drawn(id) FROM t"
    with session.epoch("common"):
        assert values(spark.sql(query)) == values(spark.sql(query))


def test_a_query_is_the_same_however_its_functions_hash(spark: Any, session: Any) -> None:
    """Canonical plans turn comparisons round by the hashes of their sides."""

    def filtered() -> Any:
        column = drawn("id")
        return values(spark.range(0, ROWS, 1, 3).where(column > 0).select("id", column))

    for _ in range(5):
        first, second = again(session, filtered)
        assert second == first


@pytest.mark.parametrize("separator", ["", "-", "_"], ids=["hex", "hyphens", "underscores"])
def test_a_query_is_found_again_under_names_drawn_by_chance(
    spark: Any, session: Any, separator: str
) -> None:
    """Spark's ML names columns so, and programs name temporary ones so."""

    def named() -> Any:
        name = "t_" + str(uuid.uuid4()).replace("-", separator)
        table = spark.range(ROWS).withColumnRenamed("id", name).withColumn("other", sf.lit(1))
        first = values(table.select(name, drawn(f"`{name}`")))
        return first, values(table.where("other > 0").select(name, drawn(sf.col(f"`{name}`") + 1)))

    first, second = again(session, named)
    assert second == first


class Days(DataSource):
    """Rows of which only an option tells the day."""

    @classmethod
    def name(cls) -> str:
        return "days"

    def schema(self) -> str:
        return "id long"

    def reader(self, schema: Any) -> DataSourceReader:
        del schema
        return DayReader(int(self.options["day"]))


class DayReader(DataSourceReader):
    def __init__(self, day: int) -> None:
        self.day = day

    def read(self, _partition: Any) -> Iterator[tuple[int]]:
        return iter([(self.day * 100 + n,) for n in range(5)])


def test_options_of_a_source_tell_its_queries_apart(spark: Any, session: Any) -> None:
    spark.dataSource.register(Days)

    def of(day: int) -> Any:
        table = spark.read.format("days").option("day", day).load()
        return values(table.select("id", drawn("id")))

    recorded = []
    with suppress(Failed), session.epoch("days"):
        recorded += [of(1), of(2)]
        fail()
    with session.epoch("days"):
        # The first is done. A third was not there before.
        assert [of(2), len(of(3)), of(1)] == [recorded[1], 5, recorded[0]]


def test_a_function_is_registered_though_it_is_the_first(tmp_path: Path) -> None:
    """`register` is looked up before the causal function is made."""
    program = tmp_path / "program.py"
    program.write_text(
        "from clonos import causal\n"
        "from pyspark.sql.udf import UDFRegistration\n"
        "class Registration(UDFRegistration):\n"
        "    sparkSession = None\n"
        "    def __init__(self): pass\n"
        "seen = []\n"
        "from clonos._operators.udf import CausalUDF\n"
        "CausalUDF.register = lambda function, spark, name: seen.append(name)\n"
        "Registration().register('f', causal('long')(lambda x: x))\n"
        "print(seen)\n"
    )
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    assert ran.stdout == "['f']\n"


def test_rows_that_are_alike_as_text_have_keys_of_their_own(spark: Any, session: Any) -> None:
    @causal("string", record="services")
    def key() -> str:
        return clonos.idempotency_key()

    rows = [("Anna", "Maria, Lee"), ("Anna, Maria", "Lee"), (None, "null"), ("null", None)]
    table = spark.createDataFrame(rows, "a string, b string")
    found = [row[0] for row in table.select(key(row_key="*")).collect()]
    assert len(set(found)) == len(rows)


@pytest.mark.parametrize(
    "query",
    [
        "select id, of_view(id) from {name}",
        "with {name} as (select * from range(20)) select id, of_view(id) from {name}",
        "select a.id, of_view(b.id) from {name} a join range(20) b on a.id = b.id",
    ],
)
def test_the_name_of_a_view_means_nothing(spark: Any, session: Any, query: str) -> None:
    spark.udf.register("of_view", drawn)

    def ask(name: str) -> list[tuple[Any, ...]]:
        spark.range(20).createOrReplaceTempView(name)
        return values(spark.sql(query.format(name=name)))

    first, second = again(session, lambda: ask("left_side"), lambda: ask(f"v{uuid.uuid4().hex}"))
    assert first == second
