"""What losing one of three executors in the second stage costs: plain Spark and Clonos.

Plain Spark runs a deterministic function, with which it recovers; Clonos one that reads the clock
and draws random numbers, or asks a service, with which plain Spark aborts. What is compared is the
added wall time.
"""

from __future__ import annotations

import statistics
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
ROUNDS = 7


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
        # A read that meets the dying executor waits this long before it gives up, three times over:
        # with Spark's five seconds, whether one does would be all that is measured.
        "spark.shuffle.io.retryWait": "200ms",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    with clonos.attach(session):
        yield session
    session.stop()


def steady(batches: Iterator[Any]) -> Iterator[Any]:
    """Work that gives the same each time."""
    import pyarrow as pa

    time.sleep(SECONDS_PER_TASK)
    for batch in batches:
        yield batch.append_column("v", pa.array(list(range(batch.num_rows))))


def wild(batches: Iterator[Any]) -> Iterator[Any]:
    """Work that gives something else each time, but for what is recorded."""
    import pyarrow as pa

    import clonos

    time.sleep(SECONDS_PER_TASK)
    for batch in batches:
        drawn = int(clonos.random.random() * 1e9) ^ clonos.time_ns()
        yield batch.append_column("v", pa.array([drawn + n for n in range(batch.num_rows)]))


def asking(batches: Iterator[Any]) -> Iterator[Any]:
    """The same with the work elsewhere: a recorded answer is not asked for again."""
    import pyarrow as pa

    import clonos

    for batch in batches:
        drawn = clonos.call(answer)
        yield batch.append_column("v", pa.array([drawn + n for n in range(batch.num_rows)]))


def answer() -> int:
    """Stand for a service that takes its time."""
    time.sleep(SECONDS_PER_TASK)
    return time.time_ns()


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
    sent = clonos.map_in_arrow(rows, FUNCTIONS[kind], schema, uid=kind)
    return clonos.map_in_arrow(clonos.exchange(sent, CONSUMERS, "v"), slowly, schema, uid="slowly")


FUNCTIONS = {"clonos": wild, "clonos, service": asking}


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


@pytest.mark.timeout(1200)
@pytest.mark.benchmark(group="recovery: an executor lost in the second stage")
def test_executor_lost(benchmark: Any, spark: Any) -> None:
    kinds = ["plain", *FUNCTIONS]
    rounds = ROUNDS if benchmark.enabled else 1
    calm: dict[str, list[float]] = {kind: [] for kind in kinds}
    lost: dict[str, list[float]] = {kind: [] for kind in kinds}

    def once() -> None:
        # In turn, so that all see the same machine; each run after a loss warms the new executor.
        for kind in kinds:
            if benchmark.enabled:
                run(spark, kind, kill=False)
                calm[kind].append(run(spark, kind, kill=False))
            lost[kind].append(run(spark, kind, kill=True))

    benchmark.pedantic(once, rounds=rounds)
    for kind in kinds if benchmark.enabled else []:
        undisturbed = statistics.median(calm[kind])
        added = statistics.median(lost[kind]) - undisturbed
        benchmark.extra_info[f"added seconds, {kind}"] = added
        print(f"{kind}: {undisturbed:.2f} s undisturbed, {added:.2f} s more with the loss")
