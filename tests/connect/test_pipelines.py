"""Causal functions in the flows of Spark's declarative pipelines, run by ``spark-pipelines``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("yaml")

import pyspark

from connect.server import Server

pytestmark = pytest.mark.timeout(480)
ROWS, FAILS_AT = 40, 30

SPEC = """
name: scores
storage: file://{folder}/storage
configuration:
  spark.sql.pipelines.maxFlowRetryAttempts: "1"
  spark.sql.shuffle.partitions: "2"
libraries:
  - glob:
      include: flows/**
"""

FLOWS = """
import random
from pathlib import Path

from pyspark import pipelines
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import clonos
from clonos import causal

folder = {folder!r}
spark = SparkSession.active()
clonos.attach(spark, checkpoint_dir=folder + "/checkpoint")


@causal("double", uid="score", flush="call")
def score(n: int) -> float:
    if n == {fails_at} and not Path(folder, "mended").exists():
        raise ValueError("on purpose")
    with Path(folder, "calls.txt").open("a") as calls:
        calls.write(f"{{n}}\\n")
    return random.random()


@pipelines.table
def scored():
    return spark.readStream.schema("n long").json(folder + "/in").select("n", score("n").alias("x"))


@pipelines.materialized_view
def best():
    return spark.read.table("scored").agg(sf.max("x").alias("x"), sf.count("*").alias("n"))
"""


def test_a_flow_that_fails_goes_on_with_what_it_has_recorded(tmp_path: Path) -> None:
    for name in ("flows", "in"):
        (tmp_path / name).mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    flows = FLOWS.format(folder=str(tmp_path), fails_at=FAILS_AT)
    (tmp_path / "flows" / "flows.py").write_text(flows)
    rows = "".join(json.dumps({"n": n}) + "\n" for n in range(ROWS))
    (tmp_path / "in" / "rows.json").write_text(rows)

    # What the tables are called is in its memory.
    server = Server(tmp_path)
    try:
        said = run_pipeline(tmp_path, server, code=1)
        assert "on purpose" in said
        calls = (tmp_path / "calls.txt").read_text().split()
        # Spark tried twice.
        assert len(calls) == len(set(calls)) == FAILS_AT

        (tmp_path / "mended").touch()
        said = run_pipeline(tmp_path, server, code=0)
    finally:
        server.kill()
    assert "Run is COMPLETED" in said
    calls = (tmp_path / "calls.txt").read_text().split()
    assert sorted(map(int, calls)) == list(range(ROWS))
    assert list((tmp_path / "warehouse" / "best").glob("*.parquet"))


def run_pipeline(folder: Path, server: Server, code: int) -> str:
    """What ``spark-pipelines run`` says."""
    command = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    left = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    done = subprocess.run(
        [command, "--remote", server.url, "run", "--spec", folder / "spark-pipeline.yml"],
        env=left | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    said = done.stdout + done.stderr
    assert (done.returncode != 0) == (code != 0), said[-6000:]
    return said
