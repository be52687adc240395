"""Archive the classes of Spark that tests load, so that their JVMs start in about 0.6 of the time.

Java calls that application class-data sharing. `archive_classes.py FILE` runs a bit of everything
in a driver, which writes FILE as it ends. A JVM whose jars, version or settings are others than
this one's does not use it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# Those of tests/conftest.py.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def use(spark: Any, folder: Path) -> None:
    """Have most of what tests need be loaded."""
    from pyspark.sql import functions as sf

    rows = spark.range(0, 100, 1, 3).withColumn("word", sf.concat(sf.lit("w"), sf.col("id") % 7))
    plus = sf.udf(lambda value: value + 1, "long")
    twice = sf.pandas_udf(lambda values: values * 2, "long")
    asked = rows.select("word", plus("id").alias("a"), twice("id").alias("b"))
    counts = asked.repartition(4).groupBy("word").agg(sf.sum("a"), sf.max("b")).orderBy("word")
    counts.cache().count()
    counts.join(asked, "word").collect()
    rows.mapInArrow(lambda batches: batches, rows.schema).toPandas()
    rows.groupBy("word").applyInPandas(lambda group: group, rows.schema).collect()
    rows.rdd.map(lambda row: row.id).sum()
    rows.write.parquet(str(folder / "rows"))
    rows.write.json(str(folder / "lines"))
    source = spark.readStream.schema(rows.schema).parquet(str(folder / "rows"))
    stream = source.groupBy("word").count().writeStream.outputMode("complete")
    stream = stream.foreachBatch(lambda batch, _number: batch.collect())
    stream = stream.option("checkpointLocation", str(folder / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()


def main(file: Path) -> None:
    """Write the archive."""
    draft = file.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    os.environ["JDK_JAVA_OPTIONS"] = JAVA_OPTIONS
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f"--driver-java-options -XX:ArchiveClassesAtExit={draft} pyspark-shell"
    )
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "OFF").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        use(spark, Path(folder))
    spark.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    # The JVM ends when nobody is left to tell it anything.
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=300)
    draft.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
