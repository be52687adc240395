"""Ordinary functions: of every kind of value, from anywhere, in streams, and with services."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pandas as pd
import pytest
import tenacity
from ordinary import (
    ROWS,
    WORLD,
    Mark,
    as_plain,
    check,
    people,
    per_row,
    per_value,
    scorer,
    values,
    world,
)
from pyspark import cloudpickle
from pyspark.sql import Row, Window
from pyspark.sql import functions as sf
from pyspark.sql.functions import pandas_udf, udf, udtf

import clonos
from clonos import causal

pytestmark = pytest.mark.timeout(360)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


TYPES = """
    i int, f float, b boolean, bin binary, d date, t timestamp, n timestamp_ntz, dec decimal(20,4),
    a array<int>, m map<string,double>, s struct<x:int,y:array<string>>
"""
TYPED = [
    (
        1,
        1.5,
        True,
        b"\x00\xff",
        dt.date(2020, 2, 29),
        dt.datetime(2020, 3, 29, 2, 30),
        dt.datetime(1999, 1, 1),
        decimal.Decimal("12.3400"),
        [1, None],
        {"a": 1.0, "b": None},
        (1, ["x", None]),
    ),
    (None,) * 11,
    (
        -1,
        float("nan"),
        False,
        b"",
        dt.date(1, 1, 1),
        dt.datetime(1960, 1, 1),
        dt.datetime(2200, 1, 1),
        decimal.Decimal("-0.0001"),
        [],
        {},
        (None, None),
    ),
]


def every_type(spark: Any, mark: Mark) -> Any:
    df = spark.createDataFrame(TYPED, TYPES).repartition(3)
    texts = mark("string")(lambda x: f"{type(x).__name__} {x!r} {world()}")
    same = [mark(field.dataType)(lambda x: x)(field.name).alias(field.name) for field in df.schema]
    return values(df.select(*[texts(name) for name in df.columns])), values(df.select(*same))


def empty_frames(spark: Any, mark: Mark) -> Any:
    score = scorer(mark)
    df = people(spark)
    few = df.repartition(8).where("id < 2").withColumn("s", score("id"))
    none = df.where("id < 0").withColumn("s", score("id"))
    made = spark.createDataFrame([], "id long").withColumn("s", score("id"))
    return (
        values(few),
        values(none),
        values(made),
        none.toPandas().shape,
        made.count(),
        values(none.groupBy().agg(sf.sum("s"))),
    )


def partials_instances_and_lambdas(spark: Any, mark: Mark) -> Any:
    @dataclass
    class Model:
        weights: Any

        def __call__(self, x: int) -> float:
            return float(self.weights @ np.array([x, 1.0])) + world()

        def predict(self, x: int) -> float:
            return self(x) * 2

    model = Model(np.array([0.5, 2.0]))
    frame = pd.DataFrame({"w": [10, 20, 30]}, index=[0, 1, 2])
    columns = [
        mark("double")(model)("id"),
        mark("double")(model.predict)("id"),
        mark("long")(functools.partial(lambda a, b: a * b + world(), 3))("id"),
        mark("long")(functools.partial(pow, 2))("team"),
        mark("long")(lambda x: x + 1 + world())("id"),
        mark("long")(lambda x: x + 2 + world())("id"),
        mark("long")(lambda team: int(frame.loc[team, "w"]))("team"),
        mark("string")(str.upper)("w"),
        mark("double")(abs)(sf.col("x")),
    ]
    df = people(spark).withColumn("w", sf.lit("word")).withColumn("x", sf.lit(-1.5))
    return values(df.select(*[column.alias(f"c{i}") for i, column in enumerate(columns)]))


def grouped_maps(spark: Any, mark: Mark) -> Any:
    df = people(spark)

    def centred(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(v=frame["id"] - frame["id"].mean() + world())[["id", "v"]]

    def pair(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"l": [len(left)], "r": [len(right) + world()]})

    def batches(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame[["id"]].assign(v=float(world()))

    group, cogroup, whole = [f if mark is as_plain else causal(f) for f in (centred, pair, batches)]
    other = df.where("id % 2 = 0")
    return (
        values(df.groupBy("team").applyInPandas(group, "id long, v double")),
        values(
            df.groupBy("team").cogroup(other.groupBy("team")).applyInPandas(cogroup, "l int, r int")
        ),
        values(df.mapInPandas(whole, "id long, v double")),
    )


def pandas_functions(spark: Any, mark: Mark) -> Any:
    def made(kind: Any) -> Any:
        return kind if mark is as_plain else causal(kind)

    @made
    @pandas_udf("array<string>")
    def tags(names: pd.Series) -> pd.Series:
        return names.map(lambda name: [] if name in {"Ann", None} else [name, str(world())])

    @made
    @pandas_udf("double")
    def mean(values: pd.Series) -> float:
        return float(values.mean() + world())

    @made
    @pandas_udf("long")
    def doubled(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            yield batch * 2 + world()

    @made
    @pandas_udf("struct<a:long,b:string>")
    def both(ids: pd.Series, names: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"a": ids + world(), "b": names})

    df = people(spark)
    return (
        values(df.orderBy("name").coalesce(1).select(tags("name"))),
        values(df.where("name = 'Ann'").select(tags("name"))),
        values(df.groupBy("team").agg(mean("id"))),
        values(df.select("id", mean("id").over(Window.partitionBy("team")))),
        values(df.select(doubled("id"))),
        values(df.select(both("id", "name").alias("c")).select("c.*")),
    )


def ml_pipeline(spark: Any, mark: Mark) -> Any:
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import StandardScaler, VectorAssembler
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.ml.regression import LinearRegression

    norm = mark("double")(lambda v: float(v.norm(2)) + world())
    twice = mark(VectorUDT())(lambda v: Vectors.dense(v.toArray() * 2))
    df = people(spark).withColumn("s", scorer(mark)("id").cast("double"))
    stages = [
        VectorAssembler(inputCols=["id", "team", "s"], outputCol="raw"),
        StandardScaler(inputCol="raw", outputCol="features"),
        LinearRegression(labelCol="id", maxIter=2),
    ]
    model = Pipeline(stages=stages).fit(df)
    out = model.transform(df)
    return values(out.select("id", sf.round(norm("raw"), 6), twice(out.raw)))


def stateful_helpers(spark: Any, mark: Mark) -> Any:
    table = spark.sparkContext.broadcast({0: "zero", 1: "one"})
    pattern = re.compile(r"[aeiou]")
    cache: dict[int, str] = {}

    class Names:
        prefix = "n"

        @classmethod
        def named(cls, x: int) -> str:
            return cls.prefix + str(x + world())

        @staticmethod
        def plain(x: int) -> str:
            return str(x)

    @mark()
    def look(team: int) -> Any:
        return cache.setdefault(team, table.value.get(team, "many") + str(world()))

    @mark()
    def strip(name: Any) -> Any:
        return name and pattern.sub("", name)

    df = people(spark)
    return values(
        df.select(
            "id", look("team"), strip("name"), mark()(Names.named)("id"), mark()(Names.plain)("id")
        )
    )


def rows_and_structs(spark: Any, mark: Mark) -> Any:
    @mark("a long, b struct<c: string, d: array<long>>")
    def parsed(row: Any) -> Any:
        return Row(a=row.id, b={"c": row["name"], "d": [len(row), world()]})

    df = people(spark).withColumn("p", parsed(sf.struct("*")))
    return (
        values(df.select("id", "p.a", "p.b.*")),
        values(df.select(sf.to_json("p"))),
        values(df.where("p.b.c is null")),
    )


def table_functions(spark: Any, mark: Mark) -> Any:
    def made(kind: Any) -> Any:
        return kind if mark is as_plain else causal(kind)

    @made
    @udtf(returnType="word string, n int")
    class Words:
        def eval(self, text: str, repeat: int = 1) -> Iterator[tuple[str, int]]:
            for word in text.split():
                yield word * repeat, world()

    spark.udtf.register("words", Words)
    people(spark).createOrReplaceTempView("people")
    return (
        values(Words(sf.lit("a b c"))),
        values(spark.sql("select * from words('x y', 2)")),
        values(
            spark.sql("select p.id, w.* from people p, lateral words(coalesce(name, 'no one')) w")
        ),
    )


@pytest.mark.parametrize("mark", [per_row, per_value])
@pytest.mark.parametrize("fn", [every_type, empty_frames, partials_instances_and_lambdas])
def test_functions_of_rows(session: Any, fn: Any, mark: Mark) -> None:
    check(session, fn, mark)


@pytest.mark.parametrize(
    "fn",
    [
        pandas_functions,
        grouped_maps,
        ml_pipeline,
        stateful_helpers,
        rows_and_structs,
        table_functions,
    ],
)
def test_functions_of_every_kind(session: Any, fn: Any) -> None:
    check(session, fn, per_row)


def test_functions_of_other_modules(session: Any, tmp_path: Path) -> None:
    module = tmp_path / "scores_of_others.py"
    module.write_text(
        "OFFSET = 3\ndef helper(x): return x + OFFSET\ndef score(x): return helper(x) * 2\n"
    )
    session.spark.sparkContext.addPyFile(str(module))
    other = __import__("scores_of_others")
    df = session.spark.range(ROWS)
    expected = values(df.select(udf(other.score, "long")("id").alias("s")))
    assert values(df.select(causal("long")(other.score)("id").alias("s"))) == expected


def test_an_accumulator_counts_each_row_once(session: Any) -> None:
    seen = session.spark.sparkContext.accumulator(0)

    @causal("long")
    def count(x: int) -> int:
        seen.add(1)
        return x

    counted = people(session.spark).select(count("id"))
    with session.epoch("counted"):
        assert values(counted) == values(counted)
    assert seen.value == ROWS


@pytest.mark.parametrize("mark", [as_plain, per_row, per_value])
def test_a_transient_exception_in_the_fiftieth_row(
    session: Any, tmp_path: Path, mark: Mark
) -> None:
    asked = tmp_path / "asked"

    @mark("long")
    def fetch(x: int) -> int:
        with asked.open("a") as file:
            file.write(f"{x}\n")
        if x == 49 and asked.read_text().split().count("49") == 1:
            raise OSError("the service is away")
        return x * 2

    df = session.spark.range(0, 100, 1, 1).select(fetch("id").alias("y"))
    assert [row.y for row in df.collect()] == [x * 2 for x in range(100)]
    calls = Counter(asked.read_text().split())
    assert calls["49"] == 2
    # Spark asks again for all rows before it; what was answered is kept.
    assert calls.total() == (150 if mark is as_plain else 101)


class Service(BaseHTTPRequestHandler):
    """Numbers its answers; refuses each third request at first."""

    requests: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()

    def do_GET(self) -> None:
        with self.lock:
            self.requests[self.path] += 1
            refused = self.path.endswith("3") and self.requests[self.path] == 1
            number = self.requests.total()
        body = f"{self.path[1:]}:{number}".encode()
        self.send_response(503 if refused else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    Service.requests.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def make_client() -> httpx.Client:
    return httpx.Client(timeout=30)


def make_async_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=30)


def askers(url: str) -> dict[str, Any]:
    """Functions as people write them to ask a service, each with its way to try again."""

    @causal("string", concurrency=8, setup=make_async_client, retries=2)
    async def gathered(client: Any, x: int) -> str:
        answer = await client.get(f"{url}/{x}")
        return answer.raise_for_status().text

    @causal("string", concurrency=4)
    async def opened(x: int) -> str:
        async with httpx.AsyncClient() as client:
            while (answer := await client.get(f"{url}/{x}")).is_error:
                pass
            return answer.text

    @causal(
        "string", setup=make_client, retries=tenacity.Retrying(stop=tenacity.stop_after_attempt(3))
    )
    def with_client(client: Any, x: int) -> str:
        return client.get(f"{url}/{x}").raise_for_status().text

    @causal("string")
    @tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(0.01))
    def decorated(x: int) -> str:
        return httpx.get(f"{url}/{x}").raise_for_status().text

    @causal("string")
    def spark_tries_again(x: int) -> str:
        return httpx.get(f"{url}/{x}").raise_for_status().text

    return {fn.__name__: fn for fn in (gathered, opened, with_client, decorated, spark_tries_again)}


@pytest.mark.parametrize(
    "name", ["gathered", "opened", "with_client", "decorated", "spark_tries_again"]
)
def test_a_service_is_asked_once(session: Any, service: str, name: str) -> None:
    ask = askers(service)[name]
    df = session.spark.range(0, 20, 1, 2).select("id", ask("id").alias("answer"))
    with session.epoch(name):
        first = df.orderBy("id").collect()
        assert df.where("id > 5").orderBy("id").collect() == first[6:]
    assert [int(row.answer.split(":")[0]) for row in first] == list(range(20))
    # /3 and /13 were refused once.
    assert Service.requests == {f"/{x}": 2 if x % 10 == 3 else 1 for x in range(20)}


def test_a_cell_that_attaches_is_run_again(plain_spark: Any, tmp_path: Path) -> None:
    WORLD.write_text("0")

    def cell() -> Any:
        session = clonos.attach(plain_spark)
        score = scorer(per_row)
        with session.epoch("cell"):
            found = people(session.spark).select("id", score("id"))
            return session, values(found), values(found.repartition(3))

    first = cell()
    second = cell()
    assert first[1] == second[1] == second[2]
    second[0].stop()


@pytest.mark.parametrize("mark", [as_plain, per_row, per_value])
@pytest.mark.parametrize("sink", ["memory", "parquet", "foreachBatch"])
def test_a_stream(session: Any, tmp_path: Path, sink: str, mark: Mark) -> None:
    WORLD.write_text("0")
    spark = session.spark
    people(spark).repartition(4).write.parquet(str(tmp_path / "in"))
    stream = (
        spark.readStream.schema("id long, name string, team int")
        .option("maxFilesPerTrigger", 2)
        .parquet(str(tmp_path / "in"))
        .withColumn("s", scorer(mark)("id"))
    )
    counts: list[Any] = []

    def write(batch: Any, number: int) -> None:
        counts.append((batch.count(), batch.groupBy("s").count().count(), len(batch.collect())))
        WORLD.write_text("1000")
        if mark is not as_plain:
            assert batch.where("s >= 1000").isEmpty(), "answered in this batch already"
        WORLD.write_text("0")
        batch.write.mode("append").parquet(str(tmp_path / "out"))

    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "log"))
    if sink == "foreachBatch":
        writer = writer.foreachBatch(write)
    elif sink == "memory":
        writer = writer.format(sink).queryName("scores_in_memory")
    else:
        writer = writer.format(sink).option("path", str(tmp_path / "out"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    written = (
        spark.table("scores_in_memory")
        if sink == "memory"
        else spark.read.parquet(str(tmp_path / "out"))
    )
    expected = people(spark).withColumn("s", scorer(as_plain)("id"))
    assert values(written) == values(expected)
    assert all(rows == collected for rows, _, collected in counts)
