"""Workers, executors and agents killed while a job runs (DESIGN §4, guarantees 1 and 2).

Spark's order-independent checksum is on, as by default: it aborts the same job without Clonos, and
would abort it here if one replayed row differed in one bit.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from scene import MAP_TASKS, REDUCE_TASKS, ROWS, Killer, Record, ask, await_executors, check, job

import clonos
from clonos import causal, testing
from clonos._driver.session import EXECUTION_POLL_SECONDS

pytestmark = pytest.mark.timeout(360)


def scored(spark: Any, record: Record, **options: Any) -> Any:
    """Rows with the service's answers, asked for under Clonos."""
    path = str(record.path)

    @causal("double", uid="score", **options)
    def score(row: int) -> float:
        return ask(path, row)

    return spark.range(0, ROWS, 1, MAP_TASKS).select("id", score("id").alias("v"))


def kill_one(executors: list[testing.Executor]) -> None:
    testing.kill(executors[0].pid)


def test_plain_spark_aborts_the_job(spark: Any, record: Record) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.sql.functions import udf

    path = str(record.path)
    score = udf(lambda row: ask(path, row), "double").asNondeterministic()
    plain = spark.range(0, ROWS, 1, MAP_TASKS).select("id", score("id").alias("v"))
    with Killer(spark, kill_one) as killer, pytest.raises(Py4JJavaError) as aborted:
        job(spark, plain).collect()
    assert killer.struck == 1
    assert "indeterminate" in str(aborted.value)


def test_an_executor_is_lost(spark: Any, record: Record) -> None:
    with clonos.attach(spark) as session, session.epoch("one"):
        with Killer(spark, kill_one) as killer:
            rows = job(spark, scored(spark, record)).collect()
        totals = session.stats().totals
    assert killer.struck == 1
    check(rows, record.read())
    assert not record.twice
    assert 0 < totals.replayed < ROWS, "only what was lost ran again, and it was replayed"
    assert totals.live == ROWS


def test_an_executor_is_lost_with_its_agent(spark: Any, record: Record) -> None:
    def kill(executors: list[testing.Executor]) -> None:
        pid = executors[0].pid
        agents = testing.agents([pid])
        assert agents, "the executor has an agent"
        testing.kill(pid, *agents)

    with clonos.attach(spark) as session, session.epoch("with agent"):
        with Killer(spark, kill) as killer:
            rows = job(spark, scored(spark, record)).collect()
    assert killer.struck == 1
    check(rows, record.read())
    assert not record.twice


def test_two_of_three_executors_are_lost_at_once(spark: Any, record: Record) -> None:
    def kill(executors: list[testing.Executor]) -> None:
        pids = [executor.pid for executor in executors[:2]]
        testing.kill(*pids, *testing.agents(pids))

    with clonos.attach(spark, sharing_depth=2) as session, session.epoch("two"):
        # All three have agents before the job, so that each log has two peers to go to.
        warm_up = causal("long", uid="warm-up")(lambda n: n)
        spark.range(0, 6, 1, 6).select(warm_up("id")).collect()
        with Killer(spark, kill) as killer:
            rows = job(spark, scored(spark, record)).collect()
        lost = session.stats().totals.lost
    assert killer.struck == 1
    assert lost == 0
    check(rows, record.read())
    assert not record.twice


def test_executors_are_lost_one_after_the_other(spark: Any, record: Record) -> None:
    """One copy survives one loss; it is copied again before the next."""

    def copied_again(session: clonos.Session) -> bool:
        stats = session.stats()
        alive = {agent.addr for agent in stats.agents if agent.alive}
        return all(len(alive.intersection(task.holders)) > 1 for task in stats.tasks)

    results = []
    with clonos.attach(spark, sharing_depth=1) as session, session.epoch("again"):
        for _ in range(3):
            with Killer(spark, kill_one) as killer:
                results.append(job(spark, scored(spark, record)).collect())
            assert killer.struck == 1
            await_executors(spark)
            testing.wait_until(lambda: copied_again(session), "copies to be made again")
        assert session.stats().totals.lost == 0
    for rows in results:
        check(rows, record.read())
    assert not record.twice


def test_an_agent_is_lost_alone(spark: Any, record: Record) -> None:
    def kill(executors: list[testing.Executor]) -> None:
        agents = testing.agents([executor.pid for executor in executors])
        assert agents
        testing.kill(agents[0])

    with clonos.attach(spark) as session, session.epoch("agent"):
        with Killer(spark, kill) as killer:
            first = job(spark, scored(spark, record)).collect()
        # Everything again: tasks of the executor whose agent died find their logs elsewhere.
        second = job(spark, scored(spark, record)).collect()
    assert killer.struck == 1
    assert sorted(first) == sorted(second)
    check(second, record.read())
    assert not record.twice


def test_a_python_worker_dies_in_the_middle_of_a_partition(
    spark: Any, record: Record, tmp_path: Path
) -> None:
    path, marks = str(record.path), str(tmp_path / "died")

    @causal("double", uid="dies", flush="call")
    def score(row: int) -> float:
        mark = Path(f"{marks}-{row}")
        if row % 200 == 150 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return ask(path, row)

    with clonos.attach(spark) as session, session.epoch("worker"):
        rows = job(
            spark, spark.range(0, ROWS, 1, MAP_TASKS).select("id", score("id").alias("v"))
        ).collect()
    deaths = list(tmp_path.glob("died-*"))
    assert len(deaths) == ROWS // 200
    check(rows, record.read())
    # With flush="call" each answer was stable before the next row was asked about.
    assert not record.twice


def test_rows_behind_a_shuffle_are_found_in_another_order(spark: Any, record: Record) -> None:
    path = str(record.path)

    @causal("double", uid="behind")
    def score(word: str, row: int) -> float:
        return ask(path, row)

    shuffled = spark.range(0, ROWS, 1, MAP_TASKS).selectExpr("id", "string(id % 7) word")
    with clonos.attach(spark) as session, session.epoch("behind"):
        behind = shuffled.repartition(4).select("id", score("word", "id").alias("v"))
        with Killer(spark, kill_one) as killer:
            rows = job(spark, behind).collect()
        assert session.stats().totals.replayed
    assert killer.struck == 1
    check(rows, record.read())
    assert not record.twice


def test_groups_of_a_lost_executor_are_found(spark: Any, record: Record) -> None:
    path = str(record.path)

    @causal(uid="groups")
    def score(group: Any) -> Any:
        return group.assign(v=[ask(path, row) for row in group["id"]])[["id", "v"]]

    def kill(executors: list[testing.Executor]) -> None:
        pid = executors[0].pid
        testing.kill(pid, *testing.agents([pid]))

    # One task for each executor and more: adaptive execution would make one of so few rows.
    settings = {
        "shuffle.partitions": str(MAP_TASKS),
        "adaptive.coalescePartitions.enabled": "false",
    }
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.{name}", value)
    rows = spark.range(0, ROWS, 1, MAP_TASKS).selectExpr("id", f"id % {ROWS // 5} word")
    try:
        with clonos.attach(spark) as session, session.epoch("groups"):
            grouped = rows.groupBy("word").applyInPandas(score, "id long, v double")
            with Killer(spark, kill) as killer:
                answers = job(spark, grouped).collect()
            assert session.stats().totals.replayed
    finally:
        for name in settings:
            spark.conf.unset(f"spark.sql.{name}")
    assert killer.struck == 1
    check(answers, record.read())
    assert not record.twice


def test_an_executor_is_lost_before_somebody_fetches_the_first_row(
    spark: Any, record: Record
) -> None:
    """Adaptive execution does all shuffles before anybody asks for a row."""
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    with clonos.attach(spark) as session:
        rows = scored(spark, record).repartition(REDUCE_TASKS, "v").toLocalIterator()
        testing.wait_until(lambda: len(record.read().calls) == ROWS, "the shuffle")
        time.sleep(3 * EXECUTION_POLL_SECONDS)
        testing.kill(testing.executors(spark)[0].pid)
        check(list(rows), record.read())
        assert session.stats().totals.replayed
    assert not record.twice
