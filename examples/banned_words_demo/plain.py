"""The same pipeline as plain Spark has it: what people write today."""

import sqlite3
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, current_timestamp, explode, split, udf, window
from pyspark.sql.functions import max as latest


def banned_words(service: str) -> Any:
    """Return the function that asks the service at a URL whether a word is banned."""
    clients: list[httpx.Client] = []

    def is_banned(word: str) -> bool:
        if not clients:
            clients.append(httpx.Client(timeout=30))
        return bool(clients[0].get(service, params={"word": word}).json())

    return udf(is_banned, "boolean").asNondeterministic()


def writer(path: Path) -> Any:
    """Return a function that writes a batch into SQLite, as one would by hand."""

    def write(batch: DataFrame, _number: int) -> None:
        rows = [(str(row[0]), row[1], row[2], str(row[3])) for row in batch.collect()]
        with sqlite3.connect(path, timeout=30) as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS counts "
                "(start TEXT, word TEXT, count INTEGER, received TEXT, PRIMARY KEY (start, word))"
            )
            connection.executemany(
                "INSERT INTO counts VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "count = excluded.count, received = excluded.received",
                rows,
            )

    return write


def main(
    port: Annotated[int, typer.Option(help="Where the lines come from.")],
    service: Annotated[str, typer.Option(help="URL of the service.")],
    folder: Annotated[Path, typer.Option(help="For results and checkpoints.")],
    master: Annotated[str, typer.Option(help="Spark master.")] = "local-cluster[2,1,1024]",
) -> None:
    """Run the query until it is stopped."""
    spark = (
        SparkSession.builder.master(master)
        .appName("banned words, plain")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.task.maxFailures", 20)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", value=False)
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    source = spark.readStream.format("socket").option("includeTimestamp", value=True)
    lines = source.options(host="127.0.0.1", port=port).load()
    words = lines.select(explode(split("value", r"\s")).alias("word"), "timestamp")
    kept = words.where(~banned_words(service)("word")).withColumn("ts", current_timestamp())
    counts = kept.groupBy(window("ts", "5 seconds"), "word")
    counted = counts.agg(count("*").alias("count"), latest("timestamp").alias("received"))
    rows = counted.selectExpr("window.start as start", "word", "`count`", "received")
    # Spark's socket source cannot go on from a checkpoint, so each start has a new one.
    checkpoint = folder / f"spark-{time.time_ns()}"
    sink = rows.writeStream.outputMode("update").foreachBatch(writer(folder / "results.db"))
    sink.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    typer.run(main)
