"""Count the words of a live text that are not banned, in five-second windows of processing time.

Nothing in it is deterministic or can be read twice: lines come over a socket, a service says which
words are banned today, the clock says which window a word falls into. Whatever fails, each line is
counted once, with the service's first answer, in one window.

    python examples/banned_words_demo --chaos     starts all that it needs and kills parts of it
    python examples/banned_words.py --help        runs against servers of your own
"""

from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, explode, split, window
from pyspark.sql.functions import max as latest

import clonos
from clonos import causal


def banned_words(service: str) -> Any:
    """Return the function that asks the service at a URL whether a word is banned."""
    clients: list[httpx.Client] = []

    @causal("boolean", uid="banned-words")
    def is_banned(word: str) -> bool:
        if not clients:
            clients.append(httpx.Client(timeout=30))
        # With the same key for every attempt, a service that knows such keys answers as before.
        headers = {"Idempotency-Key": clonos.idempotency_key()}
        return bool(clients[0].get(service, params={"word": word}, headers=headers).json())

    return is_banned


def count_words(lines: DataFrame, is_banned: Any) -> DataFrame:
    """Count the words that are not banned; `lines` has the columns value and timestamp."""
    words = lines.select(explode(split("value", r"\s")).alias("word"), "timestamp")
    timed = words.where(~is_banned("word")).withColumn("ts", clonos.functions.now())
    counts = timed.groupBy(window("ts", "5 seconds"), "word")
    counted = counts.agg(count("*").alias("count"), latest("timestamp").alias("received"))
    return counted.selectExpr("window.start as start", "word", "`count`", "received")


def main(
    port: Annotated[int, typer.Option(help="Where the lines come from.")],
    service: Annotated[str, typer.Option(help="URL of the service.")],
    folder: Annotated[Path, typer.Option(help="For results, checkpoint and logs.")],
    master: Annotated[str, typer.Option(help="Spark master.")] = "local-cluster[2,1,1024]",
) -> None:
    """Run the query until it is stopped, or killed: run it again, and it goes on."""
    spark = (
        SparkSession.builder.master(master)
        .appName("banned words")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.task.maxFailures", 20)
        .config("spark.ui.enabled", value=False)
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    session = clonos.attach(spark, checkpoint_dir=folder / "clonos")
    source = spark.readStream.format("clonos-socket").options(
        host="127.0.0.1", port=port, name="lines", acknowledge=True, includeTimestamp=True,
        maxRecordsPerBatch=200, numPartitions=2,
    )  # fmt: skip
    counts = count_words(source.load(), banned_words(service))
    database = {"path": folder / "results.db", "table": "counts", "key": "start,word"}

    def write(batch: DataFrame, number: int) -> None:
        sink = batch.write.format("clonos-sqlite").options(**database, epoch=number)
        sink.mode("append").save()

    sink = counts.writeStream.outputMode("update").foreachBatch(session.foreach_batch(write))
    sink.option("checkpointLocation", folder / "spark").start().awaitTermination()


if __name__ == "__main__":
    typer.run(main)
