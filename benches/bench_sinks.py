"""Each sink against the plain way of writing the same rows in the same epochs.

A stream of six epochs (two of them warm everything up) goes through the sink, or through the
plain way: `foreachBatch` with Spark's own Parquet writer, with rows collected and inserted on the
driver, with a producer in each partition. One figure is the time from the first epoch after the
warm-up to the last commit. By turns in one process; quote ratios.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sinks"))

import sink_servers

from clonos._sinks import data_sources

EPOCHS = 6
WARM = 2
ROWS = 200_000
FEWER = 100_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50000")
        .getOrCreate()
    )
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for source in data_sources():
        session.dataSource.register(source)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def postgres() -> Iterator[sink_servers.Postgres]:
    pytest.importorskip("psycopg")
    server = sink_servers.Postgres()
    yield server
    server.close()


@pytest.fixture(scope="module")
def kafka() -> Iterator[sink_servers.Kafka]:
    pytest.importorskip("confluent_kafka")
    broker = sink_servers.Kafka()
    yield broker
    broker.close()


def source(spark: SparkSession, folder: Path, rows: int) -> Any:
    """Make a stream of epochs, one file each."""
    path = folder / "in"
    frame = spark.range(0, rows, 1, 2).selectExpr(
        "id", "id * 7919 % 1000003 AS v", "concat('item-', id % 5000) AS word", "id / 7 AS ratio"
    )
    for _ in range(EPOCHS):
        frame.coalesce(1).write.mode("append").parquet(str(path))
    reader = spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(path)).repartition(2)


def seconds(query: Any) -> float:
    """Return the time that a finished query took for its epochs after the warm-up."""
    query.awaitTermination()
    took = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
    assert len(took) == EPOCHS
    return sum(took[WARM:]) / 1e3


def measure(benchmark: Any, start: Callable[[], Any]) -> None:
    """Time the epochs, not the start of the query."""
    found = []

    def run() -> None:
        found.append(seconds(start()))

    benchmark.pedantic(run, rounds=3)
    benchmark.extra_info["seconds of epochs"] = sorted(found)


def stream(df: Any, folder: Path) -> Any:
    name = uuid.uuid4().hex
    return df.writeStream.option("checkpointLocation", str(folder / name)).trigger(
        availableNow=True
    )


def to_sink(df: Any, folder: Path, sink: str, options: Callable[[], dict[str, str]]) -> Any:
    return lambda: stream(df, folder).format(sink).options(**options()).start()


def to_batches(df: Any, folder: Path, write: Callable[[Any, int], None]) -> Any:
    return lambda: stream(df, folder).foreachBatch(write).start()


@pytest.mark.benchmark(group="sinks, Parquet files")
@pytest.mark.parametrize("how", ["spark", "clonos"])
def test_parquet(benchmark: Any, spark: SparkSession, tmp_path: Path, how: str) -> None:
    df = source(spark, tmp_path, ROWS * 4)

    def plain(batch: Any, epoch: int) -> None:
        batch.write.mode("append").parquet(str(tmp_path / f"plain/epoch={epoch}"))

    def options() -> dict[str, str]:
        return {"path": str(tmp_path / uuid.uuid4().hex)}

    start = to_sink(df, tmp_path, "clonos-files", options)
    measure(benchmark, start if how == "clonos" else to_batches(df, tmp_path, plain))


@pytest.mark.benchmark(group="sinks, JSON lines")
@pytest.mark.parametrize("how", ["spark", "clonos"])
def test_json(benchmark: Any, spark: SparkSession, tmp_path: Path, how: str) -> None:
    df = source(spark, tmp_path, ROWS * 2)

    def plain(batch: Any, epoch: int) -> None:
        batch.write.mode("append").json(str(tmp_path / f"plain/epoch={epoch}"))

    def options() -> dict[str, str]:
        return {"path": str(tmp_path / uuid.uuid4().hex), "fileFormat": "jsonl"}

    start = to_sink(df, tmp_path, "clonos-files", options)
    measure(benchmark, start if how == "clonos" else to_batches(df, tmp_path, plain))


@pytest.mark.benchmark(group="sinks, SQLite")
@pytest.mark.parametrize("how", ["plain", "clonos"])
def test_sqlite(benchmark: Any, spark: SparkSession, tmp_path: Path, how: str) -> None:
    df = source(spark, tmp_path, ROWS)
    path = tmp_path / "plain.db"

    def plain(batch: Any, _epoch: int) -> None:
        with closing(sqlite3.connect(path)) as base:
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = FULL")
            base.execute(
                "CREATE TABLE IF NOT EXISTS t (id bigint, v bigint, word text, ratio real)"
            )
            rows = batch.toLocalIterator(prefetchPartitions=True)
            base.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
            base.commit()

    def options() -> dict[str, str]:
        return {"path": str(tmp_path / f"{uuid.uuid4().hex}.db"), "table": "t"}

    start = to_sink(df, tmp_path, "clonos-sqlite", options)
    measure(benchmark, start if how == "clonos" else to_batches(df, tmp_path, plain))


@pytest.mark.benchmark(group="sinks, PostgreSQL")
@pytest.mark.parametrize("how", ["plain", "clonos", "clonos unlogged", "clonos message"])
def test_postgresql(
    benchmark: Any, spark: SparkSession, postgres: Any, tmp_path: Path, how: str
) -> None:
    import psycopg

    df = source(spark, tmp_path, ROWS)
    url = postgres.url

    def plain(batch: Any, _epoch: int) -> None:
        with psycopg.connect(url) as link, link.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS t (id bigint, v bigint, word text, r float8)"
            )
            with cursor.copy("COPY t FROM STDIN") as copy:
                for row in batch.toLocalIterator(prefetchPartitions=True):
                    copy.write_row(row)

    def options() -> dict[str, str]:
        more = {
            "clonos": {"stageAbove": "1MiB"},
            "clonos unlogged": {"stageAbove": "1MiB", "staging": "unlogged"},
            "clonos message": {"stageAbove": "1g"},
        }
        return {"url": url, "table": f"t{uuid.uuid4().hex}", **more.get(how, {})}

    start = to_sink(df, tmp_path, "clonos-postgresql", options)
    measure(benchmark, to_batches(df, tmp_path, plain) if how == "plain" else start)


@pytest.mark.benchmark(group="sinks, Kafka")
@pytest.mark.parametrize("how", ["plain", "clonos"])
def test_kafka(benchmark: Any, spark: SparkSession, kafka: Any, tmp_path: Path, how: str) -> None:
    fields = "to_json(struct(id, v, word, ratio)) AS value"
    df = source(spark, tmp_path, FEWER).selectExpr("word AS key", fields)
    servers, topic = kafka.servers, f"bench-{uuid.uuid4().hex}"

    def send(rows: Any) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": servers, "queue.buffering.max.messages": 500_000, "linger.ms": 20}
        )
        for row in rows:
            producer.produce(topic, row.value, row.key)
        assert producer.flush(60) == 0

    def plain(batch: Any, _epoch: int) -> None:
        batch.foreachPartition(send)

    def options() -> dict[str, str]:
        return {"kafka.bootstrap.servers": servers, "topic": topic}

    start = to_sink(df, tmp_path, "clonos-kafka", options)
    measure(benchmark, start if how == "clonos" else to_batches(df, tmp_path, plain))


@pytest.mark.benchmark(group="sinks, Delta")
@pytest.mark.parametrize("how", ["plain", "clonos"])
def test_delta(benchmark: Any, spark: SparkSession, tmp_path: Path, how: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    df = source(spark, tmp_path, ROWS)
    plain_path = str(tmp_path / "plain")

    def plain(batch: Any, _epoch: int) -> None:
        deltalake.write_deltalake(plain_path, batch.toArrow(), mode="append")

    def options() -> dict[str, str]:
        return {"path": str(tmp_path / uuid.uuid4().hex)}

    start = to_sink(df, tmp_path, "clonos-delta", options)
    measure(benchmark, start if how == "clonos" else to_batches(df, tmp_path, plain))


def main(path: str) -> None:
    """Print the medians of a report that pytest-benchmark wrote."""
    for result in json.loads(Path(path).read_text())["benchmarks"]:
        median = sorted(result["extra_info"]["seconds of epochs"])[1]
        print(f"{result['group']:28} {result['param']:16} {median:6.2f} s")


if __name__ == "__main__":
    main(sys.argv[1])


@pytest.mark.benchmark(group="guarantees, Parquet files and PostgreSQL")
@pytest.mark.parametrize("sink", ["clonos-files", "clonos-postgresql"])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_guarantees(
    benchmark: Any,
    spark: SparkSession,
    postgres: sink_servers.Postgres,
    tmp_path: Path,
    sink: str,
    guarantee: str,
) -> None:
    df = source(spark, tmp_path, FEWER)

    def options() -> dict[str, str]:
        name = uuid.uuid4().hex
        where = {"path": str(tmp_path / name)}
        if sink == "clonos-postgresql":
            where = {"url": postgres.url, "table": f"t{name}"}
        return {**where, "guarantee": guarantee}

    measure(benchmark, to_sink(df, tmp_path, sink, options))
