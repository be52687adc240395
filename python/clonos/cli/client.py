"""What ``clonos doctor --master sc://…`` looks at: a server of Spark Connect, from a client."""

from __future__ import annotations

import functools
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from clonos.cli import cluster
from clonos.cli.finding import Finding

if TYPE_CHECKING:
    from clonos.cli.cluster import Asked

# Where a server listens that is not told otherwise.
PORT = 15_002
_REACHED_SECONDS = 10.0


def in_client(asked: Asked) -> Iterator[Finding]:
    """Attach to the server, and look around there.

    What a client cannot see is whether all executors have answered: Spark does not tell it of them.
    Its own clock is none that counts, so executors' clocks are compared with each other.
    """
    from pyspark.sql import SparkSession

    import clonos

    # PySpark's own client would try for ten minutes.
    place = urlsplit(asked.master)
    socket.create_connection((place.hostname, place.port or PORT), _REACHED_SECONDS).close()
    spark: Any = SparkSession.builder.remote(asked.master).getOrCreate()
    try:
        yield Finding(True, f"Spark Connect at {asked.master}: Spark {spark.version}")
        yield from cluster.settings(spark, spark.conf, asked)
        told = _answers(spark, asked)
        if isinstance(told, Finding):
            yield told
            return
        yield from cluster.of_hosts(told, has_folder=asked.checkpoint_dir is not None)
        session: Any = clonos.attach(
            spark,
            agent_ports=asked.agent_ports,
            checkpoint_dir=asked.checkpoint_dir,
            storage_options=asked.options or None,
        )
        with session:
            yield Finding(True, "a process of Clonos runs beside the Spark driver")
            yield cluster.use(session, cluster.TASKS_PER_SLOT * _slots(spark))
    finally:
        # It may be gone already, which is what was found.
        with suppress(Exception):
            spark.stop()


def _answers(spark: Any, asked: Asked) -> list[dict[str, Any]] | Finding:
    """What executors say, once they and their workers have started; or why nobody knows."""
    late, tag = threading.Event(), f"clonos doctor {uuid.uuid4().hex}".replace(" ", "-")
    ask = functools.partial(cluster.probe().rows, asked.checkpoint_dir, asked.options)
    told: dict[tuple[str, str, int], dict[str, Any]] = {}
    spark.addTag(tag)
    try:
        with cluster.after(asked.wait_s, lambda: spark.interruptTag(tag), late):
            tasks = cluster.TASKS_PER_SLOT * _slots(spark)
            # The first round has them started, so that clocks are read within the second.
            for _ in range(2):
                begin = time.time()
                numbers = spark.range(0, tasks, 1, tasks)
                answers = [
                    json.loads(row.told) for row in numbers.mapInArrow(ask, "told string").collect()
                ]
                took = time.time() - begin
                for one in answers:
                    told[one["host"], one["machine"], one["executor"]] = one
            first = min(one["time"] for one in told.values())
            for one in told.values():
                one["apart"] = max(one["time"] - first - took, 0)
    except Exception as error:  # noqa: BLE001, whatever fails is the finding
        if late.is_set():
            return cluster.late_ones(asked)
        advice = "see the executors' logs; Python is the same everywhere (PYSPARK_PYTHON)"
        return Finding(False, f"asking the executors: {cluster.reason(error)}", advice)
    finally:
        spark.removeTag(tag)
    return list(told.values())


def _slots(spark: Any) -> int:
    """How many tasks Spark has run at once, by default."""
    from pyspark.sql import functions

    parts = spark.range(1_000).select(functions.spark_partition_id().alias("part")).distinct()
    return max(int(parts.count()), 1)
