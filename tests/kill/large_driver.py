"""A driver of a large job: ``python large_driver.py '<json>'``; waits to be killed uncommitted.

Keys of the JSON: folder, rows, partitions, memory, to (the folder within it that the rows go to).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pyarrow as pa
import scene
from pyspark.sql.functions import arrow_udf
from pyspark.sql.types import StringType

import clonos
from clonos import causal, testing

CHARACTERS = 40


@causal(uid="drawn", per="row")
@arrow_udf(StringType())
def drawn(ids: pa.Array) -> pa.Array:
    """Another text for each row."""
    texts = os.urandom(len(ids) * CHARACTERS // 2).hex().encode()
    offsets = pa.array(range(0, len(texts) + 1, CHARACTERS), pa.int32())
    return pa.StringArray.from_buffers(len(ids), offsets.buffers()[1], pa.py_buffer(texts))


def main() -> None:
    """Run what the argument says."""
    plan = json.loads(sys.argv[1])
    folder = Path(plan["folder"])
    spark = scene.start("local-cluster[2,2,1024]")
    settings = {"checkpoint_dir": folder / "logs", "memory": plan["memory"]}
    with clonos.attach(spark, **settings) as session, session.epoch("large"):
        rows = spark.range(0, plan["rows"], 1, plan["partitions"])
        rows.select("id", drawn("id").alias("text")).write.parquet(str(folder / plan["to"]))
        agents = testing.agents([executor.pid for executor in testing.executors(spark)])
        peaks = [peak_bytes(pid) for pid in agents]
        (folder / f"{plan['to']} peaks").write_text(json.dumps(peaks))
        (folder / f"{plan['to']} done").touch()
        time.sleep(600)


def peak_bytes(pid: int) -> int:
    """Most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main()
