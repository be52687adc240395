"""A Spark with task retries for the tests of a module, and a Clonos session for each.

With ``CLONOS_TESTS_OVER_CONNECT=1`` they are clients of a server of Spark Connect: `make
test-connect` has them so.
"""

from __future__ import annotations

import contextlib
import os
import re
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


OVER_CONNECT = os.environ.get("CLONOS_TESTS_OVER_CONNECT") == "1"
# Of what a client lacks: PySpark's conditions, of which the last is for functions that were made
# before there was a session, and words that all refusals of ours have.
LACKING = re.compile(
    r"JVM_ATTRIBUTE_NOT_SUPPORTED|\[NOT_IMPLEMENTED\].*|CANNOT_REGISTER_UDTF"
    r"|[^\n]*over Spark Connect[^\n]*"
)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Skip what is refused by name over Spark Connect, by PySpark or by Clonos, with that name."""
    if OVER_CONNECT and pyfuncitem.get_closest_marker("classic") is not None:
        pytest.skip("it needs the driver in its own process")
    try:
        return (yield)
    except AssertionError:
        # It may say which session it was.
        raise
    except Exception as error:
        found = LACKING.search(f"{error}") if OVER_CONNECT else None
        if found is None:
            raise
        pytest.skip(found.group()[:200])


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from connect.server import Server

    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def plain_spark(request: pytest.FixtureRequest) -> Iterator[Any]:
    if not OVER_CONNECT:
        with started("local[2,4]") as spark:
            yield spark
        return
    from pyspark.sql import SparkSession

    server = request.getfixturevalue("connect_server")
    client = SparkSession.builder.remote(server.url).config("spark.sql.shuffle.partitions", "3")
    spark = client.create()
    yield spark
    spark.stop()


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
