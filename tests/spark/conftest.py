"""A Spark with task retries for the tests of a module, and a Clonos session for each."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@contextlib.contextmanager
def started(master: str) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("spark tests")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "3",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def plain_spark() -> Iterator[Any]:
    with started("local[2,4]") as spark:
        yield spark


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Return a session on executors of their own, for a test alone."""
    import clonos

    with started("local-cluster[2,1,1024]") as spark, clonos.attach(spark) as attached:
        yield attached


@pytest.fixture
def session(plain_spark: Any) -> Iterator[Any]:
    import clonos

    with clonos.attach(plain_spark) as attached:
        yield attached


@pytest.fixture
def spark(session: Any) -> Any:
    return session.spark
