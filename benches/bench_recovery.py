"""What losing one of three executors in the second stage costs: plain Spark and Clonos.

Plain Spark runs a deterministic function, with which it recovers; Clonos one that reads the clock
and draws random numbers, with which plain Spark aborts. What is compared is the added wall time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from clonos import testing

ROWS = 60_000
SENDERS = 6
CONSUMERS = 9
SECONDS_PER_TASK = 0.5
DONE_BEFORE_KILL = 3
ROUNDS = 3


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark import cloudpickle
    from pyspark.sql import SparkSession

    import clonos

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    builder = SparkSession.builder.master("local-cluster[3,1,1024]")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.adaptive.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    with clonos.attach(session):
        yield session
    session.stop()


def steady(batches: Iterator[Any]) -> Iterator[Any]:
    """Work that gives the same each time."""
    time.sleep(SECONDS_PER_TASK)
    for batch in batches:
        yield batch.append_column("v", batch.column(0))


def wild(batches: Iterator[Any]) -> Iterator[Any]:
    """Work that gives something else each time, but for what is recorded."""
    import pyarrow as pa

    import clonos

    time.sleep(SECONDS_PER_TASK)
    for batch in batches:
        drawn = int(clonos.random.random() * 1e9) ^ clonos.time_ns()
        yield batch.append_column("v", pa.array([drawn + n for n in range(batch.num_rows)]))


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    """Stand for the work of the second stage."""
    time.sleep(SECONDS_PER_TASK)
    yield from batches


def job(spark: Any, kind: str) -> Any:
    """Two stages with a shuffle between."""
    import clonos

    rows = spark.range(0, ROWS, 1, SENDERS)
    schema = "id long, v long"
    if kind == "plain":
        sent = rows.mapInArrow(steady, schema).repartition(CONSUMERS, "v")
        return sent.mapInArrow(slowly, schema)
    sent = clonos.map_in_arrow(rows, wild, schema, uid="wild")
    return clonos.map_in_arrow(clonos.exchange(sent, "v", CONSUMERS), slowly, schema, uid="slowly")


def run(spark: Any, kind: str, *, kill: bool) -> float:
    """Seconds of one run; with `kill` an executor is lost when three consumers are done."""
    master = spark.sparkContext._jsc.sc()
    registered = lambda: master.getExecutorMemoryStatus().size() == 4  # noqa: E731
    testing.wait_until(registered, "three executors", 60)
    # A worker and an agent are there before the clock runs.
    spark.range(3).mapInArrow(slowly, "id long").collect()
    killer = threading.Thread(target=strike, args=(spark,), daemon=True)
    begun = time.monotonic()
    if kill:
        killer.start()
    rows = job(spark, kind).count()
    taken = time.monotonic() - begun
    assert rows == ROWS
    if kill:
        killer.join(30)
    return taken


def strike(spark: Any) -> None:
    """Kill an executor once the second stage has rows out."""
    tracker = spark.sparkContext.statusTracker()

    def rows_are_out() -> bool:
        infos = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return any(
            info and info.numTasks == CONSUMERS and info.numCompletedTasks >= DONE_BEFORE_KILL
            for info in infos
        )

    testing.wait_until(rows_are_out, "the second stage", 60, interval=0.02)
    testing.kill(testing.executors(spark)[0].pid)


@pytest.mark.benchmark(group="recovery: an executor lost in the second stage")
@pytest.mark.parametrize("kind", ["plain", "clonos"])
def test_executor_lost(benchmark: Any, spark: Any, kind: str) -> None:
    run(spark, kind, kill=False)
    rounds = ROUNDS if benchmark.enabled else 1
    calm = sorted(run(spark, kind, kill=False) for _ in range(rounds))
    lost: list[float] = []
    benchmark.pedantic(lambda: lost.append(run(spark, kind, kill=True)), rounds=rounds)
    added = sorted(lost)[len(lost) // 2] - calm[len(calm) // 2]
    benchmark.extra_info["added seconds"] = added
    print(f"{kind}: {calm[len(calm) // 2]:.2f} s undisturbed, {added:.2f} s more with the loss")
