"""Asks for rows, loses a process, and asks again. What it was told goes to a folder."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import clonos
from clonos import causal

ROWS = 200
FOLDER = Path(sys.argv[1])
LOSES = sys.argv[2]


@causal("double", uid="drawn")
def drawn(n: int) -> float:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{n}\n")
    time.sleep(0.01)
    return clonos.random.random()


def asked(spark: Any) -> list[tuple[int, float]]:
    rows = spark.range(0, ROWS, 1, 4).select("id", drawn("id"))
    return sorted(map(tuple, rows.collect()))


def executor(_row: int) -> int:
    """Process id of the JVM in whose worker this runs: the parent of PySpark's daemon."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    with clonos.attach(spark, checkpoint_dir=FOLDER / "logs") as session, session.epoch("one"):
        first = asked(spark)
        told = FOLDER / f"told {len(list(FOLDER.glob('told *')))}"
        told.write_text(json.dumps(first))
        if LOSES == "executor":
            os.kill(spark.sparkContext.parallelize([0], 1).map(executor).first(), signal.SIGKILL)
            assert asked(spark) == first
        elif told.name == "told 0":
            # The application's master, in which the driver is: Python's parent.
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
    (FOLDER / "done").touch()
    spark.stop()


if __name__ == "__main__":
    main()
