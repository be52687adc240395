"""What `agent_scope` and `on_lost` promise, when agents are lost or outlive their executors."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from scene import EXECUTORS, MAP_TASKS, REDUCE_TASKS, ROWS, Killer, Record, ask, check, job, slowly

import clonos
from clonos import causal, errors, testing
from clonos._driver.spark_private import shuffle_statuses

pytestmark = pytest.mark.timeout(360)
# With these Spark keeps other values that come out of a second run, and says nothing.
UNNOTICED = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
}


@pytest.fixture(autouse=True)
def _nothing_runs(spark: Any) -> None:
    """Tasks that a failed job has left take slots: executors without any have nothing to lose."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()

    def is_idle() -> bool:
        return not any(info.numRunningTasks() for info in tracker.getExecutorInfos())

    testing.wait_until(is_idle, "tasks of earlier jobs to end", 90)


@pytest.fixture
def unnoticed(spark: Any) -> Iterator[Any]:
    for name, value in UNNOTICED.items():
        spark.conf.set(name, value)
    yield spark
    for name in UNNOTICED:
        spark.conf.unset(name)


def scored(spark: Any, record: Record) -> Any:
    path = str(record.path)

    @causal("double", uid="score")
    def score(row: int) -> float:
        return ask(path, row)

    return spark.range(0, ROWS, 1, MAP_TASKS).select("id", score("id").alias("v"))


def kill_with_agents(executors: list[testing.Executor]) -> None:
    """Two executors, as one may have joined too late to have run anything, and all their logs."""
    pids = [executor.pid for executor in executors[:2]]
    testing.kill(*pids, *testing.agents(pids))


def test_an_agent_of_the_host_outlives_its_executors(spark: Any, record: Record) -> None:
    def kill(executors: list[testing.Executor]) -> None:
        testing.kill(*[executor.pid for executor in executors[:2]])

    # No copies: what is replayed can only come from the agent that two executors left behind.
    with clonos.attach(spark, agent_scope="host", sharing_depth=0) as session:
        with session.epoch("host"), Killer(spark, kill) as killer:
            rows = job(spark, scored(spark, record)).collect()
            stats = session.stats()
    assert killer.struck == 1
    assert len([agent for agent in stats.agents if agent.alive]) == 2, "the driver's and one more"
    assert stats.totals.replayed
    check(rows, record.read())
    assert not record.twice


def test_what_is_lost_is_refused_where_spark_would_not_notice(
    unnoticed: Any, record: Record
) -> None:
    with clonos.attach(unnoticed, sharing_depth=0) as session:
        with (
            Killer(unnoticed, kill_with_agents) as killer,
            pytest.raises(PySparkException) as lost,
            session.epoch("lost"),
        ):
            job(unnoticed, scored(unnoticed, record)).collect()
    assert killer.struck == 1
    assert isinstance(errors.find(lost.value), errors.CausalLogLost)


def test_what_an_earlier_job_of_an_epoch_has_shown_is_not_made_anew_where_it_is_lost(
    spark: Any, record: Record
) -> None:
    # Spark's checksum compares what the attempts of one stage wrote: here it would see one attempt.
    with clonos.attach(spark, sharing_depth=0) as session, session.epoch("shown"):
        before = scored(spark, record).collect()
        kill_with_agents(testing.executors(spark))
        with pytest.raises(PySparkException) as lost:
            scored(spark, record).collect()
    assert len(before) == ROWS
    found = errors.find(lost.value)
    assert isinstance(found, errors.CausalLogLost)
    assert "an earlier job of the epoch" in str(found)


def test_what_is_lost_is_asked_again_if_one_asks_for_it(unnoticed: Any, record: Record) -> None:
    settings: dict[str, Any] = {"sharing_depth": 0, "on_lost": "at_least_once"}
    with clonos.attach(unnoticed, **settings) as session, session.epoch("again"):
        with Killer(unnoticed, kill_with_agents) as killer:
            # By their id: rows that went by a value that is another now could be missing, or twice.
            shuffled = scored(unnoticed, record).repartition(REDUCE_TASKS, "id")
            rows = shuffled.mapInArrow(slowly, "id long, v double").collect()
        assert session.stats().totals.lost
    assert killer.struck == 1
    assert sorted(row.id for row in rows) == list(range(ROWS))
    assert record.read().twice


@pytest.mark.parametrize("epoch", ["one for both", "each its own"])
def test_a_job_over_rdds_does_not_mix_what_it_reads_of_an_earlier_jobs_shuffle(
    spark: Any, record: Record, epoch: str
) -> None:
    def kill(executors: list[testing.Executor]) -> None:
        testing.kill(*[executor.pid for executor in executors[:2]])

    with clonos.attach(spark, sharing_depth=2) as session:
        rows = scored(spark, record).rdd.map(lambda row: (row.v, row.id))
        shuffled = rows.partitionBy(REDUCE_TASKS, lambda v: int(v * REDUCE_TASKS))
        both = session.epoch("both") if epoch == "one for both" else contextlib.nullcontext()
        with both:
            assert shuffled.count() == ROWS
            with Killer(spark, kill) as killer:
                if epoch == "one for both":
                    found = shuffled.mapPartitions(slowly).collect()
                    assert sorted(row for _, row in found) == list(range(ROWS))
                    assert not record.read().twice
                else:
                    with pytest.raises(Exception) as lost:
                        shuffled.mapPartitions(slowly).collect()
                    assert isinstance(errors.find(lost.value), errors.CausalLogLost)
    assert killer.struck == 1


@pytest.mark.parametrize("epoch", ["its own", "two"])
def test_no_shuffle_of_an_rdd_is_of_two_epochs(spark: Any, epoch: str) -> None:
    def kill(executors: list[testing.Executor]) -> None:
        testing.kill(*[executor.pid for executor in executors[:2]])

    def within(name: str) -> contextlib.AbstractContextManager[Any]:
        return session.epoch(name) if epoch == "two" else contextlib.nullcontext()

    with clonos.attach(spark, sharing_depth=2) as session:
        numbers = spark.sparkContext.parallelize(range(ROWS), MAP_TASKS)
        rows = clonos.map_partitions(
            numbers, lambda part: ((clonos.random.random(), row) for row in part)
        )
        shuffled = rows.partitionBy(REDUCE_TASKS, lambda v: int(v * REDUCE_TASKS))
        with within("first"):
            assert shuffled.count() == ROWS
        with within("second"), Killer(spark, kill) as killer:
            if epoch == "two":
                with pytest.raises(Exception) as lost:
                    shuffled.mapPartitions(slowly).collect()
                assert isinstance(errors.find(lost.value), errors.CausalLogLost)
            else:
                found = shuffled.mapPartitions(slowly).collect()
                assert sorted(row for _, row in found) == list(range(ROWS))
                assert session.stats().totals.replayed
    assert killer.struck == 1


def test_what_a_cancelled_job_has_written_and_lost_is_asked_again(
    spark: Any, record: Record
) -> None:
    """Its shuffle was never complete, so nobody has read it."""
    path, context = str(record.path), spark.sparkContext
    stages = context._jsc.sc().dagScheduler().stageIdToStage()
    shuffles = shuffle_statuses(context)

    @causal("double", uid="score")
    def score(row: int) -> float:
        time.sleep(0.02)
        return ask(path, row)

    def has_lost_output() -> bool:
        outputs = shuffles.get(max(map(int, shuffles.keySet().mkString(" ").split())))
        return any(status is not None for status in outputs.get().mapStatusesDeleted())

    def kill_and_cancel() -> None:
        tracker = context.statusTracker()
        infos = lambda: map(tracker.getStageInfo, tracker.getActiveStageIds())  # noqa: E731
        testing.wait_until(
            lambda: any(info and info.numCompletedTasks >= EXECUTORS for info in infos()),
            "outputs of each executor",
        )
        testing.kill(testing.executors(spark)[0].pid)
        testing.wait_until(has_lost_output, "Spark to notice")
        context.cancelAllJobs()

    with clonos.attach(spark, sharing_depth=2):
        scores = spark.range(0, ROWS, 1, MAP_TASKS).select("id", score("id").alias("v"))
        shuffled = scores.rdd.map(lambda row: (row.v, row.id)).partitionBy(
            REDUCE_TASKS, lambda v: int(v * REDUCE_TASKS)
        )
        canceller = threading.Thread(target=kill_and_cancel)
        canceller.start()
        with pytest.raises(Exception, match="cancelled"):
            shuffled.count()
        canceller.join()
        assert stages.isEmpty(), "the job is over"
        found = shuffled.collect()
    assert sorted(row for _, row in found) == list(range(ROWS))


def test_what_only_decommissioned_executors_hold_is_copied_before_they_end(
    spark: Any, record: Record
) -> None:
    jvm, backend = spark.sparkContext._jvm, spark.sparkContext._jsc.sc().schedulerBackend()
    info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo
    with clonos.attach(spark, sharing_depth=1) as session, session.epoch("leaves"):
        shown = job(spark, scored(spark, record)).collect()
        # They may be the only two that have a log, and none is written any more.
        leaving = testing.executors(spark)[:2]
        for executor in leaving:
            reason = info("a test", jvm.scala.Option.empty())
            assert backend.decommissionExecutor(str(executor.id), reason, False, False)
        testing.wait_gone(*testing.agents([executor.pid for executor in leaving]))
        again = job(spark, scored(spark, record)).collect()
        totals = session.stats().totals
    assert totals.replayed == ROWS
    assert not totals.lost
    assert sorted(again) == sorted(shown)
