"""A cluster whose processes reach each other by IPv6 alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(300)]

PROGRAM = """
import random

from pyspark.sql import SparkSession

import clonos
from clonos import causal

six = "-Djava.net.preferIPv6Addresses=true"
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.driver.host", "[::1]")
    .config("spark.driver.bindAddress", "::1")
    .config("spark.driver.extraJavaOptions", six)
    .config("spark.executor.extraJavaOptions", six)
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
session = clonos.attach(spark)


@causal("double")
def drawn(_x) -> float:
    return random.random()


with session.epoch("six"):
    rows = spark.range(1000).select("id", drawn("id"))
    first = rows.collect()
    print("same:", rows.collect() == first)
    print("agents:", *(agent.addr for agent in session.stats().agents))
"""


def test_agents_reach_each_other_by_ipv6() -> None:
    with socket.socket(socket.AF_INET6) as here:
        try:
            here.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    environment = {**os.environ, "SPARK_LOCAL_IP": "::1", "SPARK_PREFER_IPV6": "true"}
    environment["SPARK_SUBMIT_OPTS"] = "-Djava.net.preferIPv6Addresses=true"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    # Progress bars stand before them.
    assert "same: True" in done.stdout, done.stderr[-4_000:]
    agents = done.stdout.partition("agents:")[2].split()
    assert len(agents) == 3
    assert all(agent.startswith("[::1]:") for agent in agents)
