"""A driver that ends in the middle of its epochs: ``python filter_driver.py FOLDER``, twice.

Each frame has rows that ask for the same and have nothing else that tells them apart, so that they
are known by their places. What chooses them is pickled otherwise in each process, though it is the
same. The second time it prints which frames got other answers, or none.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import scene
from pyspark.sql import functions
from pyspark.sql.functions import col, udf

import clonos
from clonos import causal

NAMES = {f"name {number}" for number in range(40)}


class Limits:
    """What a program keeps its settings in."""

    low = 3


class NotYetError(Exception):
    """The epoch is to stay open."""


def leave_open() -> None:
    """Leave an epoch without its commit."""
    raise NotYetError


def scored() -> Any:
    """A column that is another for each row, though few ask for different things."""

    @causal("double", uid="score")
    def score(_x: int) -> float:
        return random.random()

    return score("x")


def frames(spark: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """Rows as programs choose them."""
    rows = spark.read.parquet(str(folder / "rows"))
    known = spark.sparkContext.broadcast({*NAMES, "another"})
    table = bytes(random.Random(7).randbytes(2_000_000))
    return {
        "a set": lambda: rows.where(udf(lambda name: name in NAMES, "boolean")("name")),
        "a class": lambda: rows.where(udf(lambda i: i >= Limits.low, "boolean")("id")),
        "a broadcast": lambda: rows.where(udf(lambda n: n in known.value, "boolean")("name")),
        "a large table": lambda: rows.where(udf(lambda i: table[i] > 9, "boolean")("id")),
        "a list of a set": lambda: rows.where(col("name").isin(*NAMES)),
        "rows of its own": lambda: rows.join(
            functions.broadcast(spark.createDataFrame([(name,) for name in NAMES], "name string")),
            "name",
            "left_semi",
        ),
        "a folder that grows": lambda: spark.read.parquet(str(folder / "days")).where("day = 1"),
    }


def main(folder: Path) -> None:
    """Run what each time is the same program."""
    saved = folder / "saved.json"
    again = saved.exists()
    spark = scene.start("local[2]")
    made = spark.range(0, 400, 1, 2).selectExpr(
        "id", "id % 3 as x", "concat('name ', id % 60) name"
    )
    if not again:
        made.write.parquet(str(folder / "rows"))
    made.withColumn("day", functions.lit(2 if again else 1)).write.partitionBy("day").mode(
        "append"
    ).parquet(str(folder / "days"))
    answers: dict[str, Any] = json.loads(saved.read_text()) if again else {}
    with clonos.attach(spark, checkpoint_dir=folder / "logs") as session:
        for name, frame in frames(spark, folder).items():
            try:
                with session.epoch(name):
                    rows = frame().withColumn("v", scored()).select("id", "v").collect()
                    found = {str(row.id): row.v for row in rows}
                    assert len(found) > 100
                    if again:
                        print(name, "alike" if found == answers[name] else "otherwise", flush=True)
                    else:
                        answers[name] = found
                        leave_open()
            except NotYetError:
                continue
            except Exception as error:
                print(name, type(error), error, flush=True)
        saved.write_text(json.dumps(answers))
        if not again:
            os._exit(9)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
