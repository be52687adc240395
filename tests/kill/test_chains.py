"""Chains of exchanges that lose executors, agents and workers at random times (DESIGN §4 and §6).

What is checked is the result: that it is the one of some run without failures, although nothing in
the chain is deterministic. Spark's own checksum of shuffle output watches at the same time.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from chain import BATCH_ROWS, LAST, MIDDLE, SENDERS, RandomKiller, Service, chain, check_one_run
from scene import Record, await_executors

import clonos
from clonos import testing

pytestmark = pytest.mark.timeout(600)
# Bytes of each batch's determinants, so that a log is too large to ride in frames.
BALLAST = 10_000
# More of them at night: CLONOS_KILL_SEEDS=300.
SEEDS = range(int(os.environ.get("CLONOS_KILL_SEEDS", "2")))


@pytest.fixture(autouse=True)
def _settings(spark: Any) -> Any:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def with_agent(dice: random.Random, executors: list[testing.Executor]) -> list[int]:
    """One executor and its agent: what a lost container takes along."""
    pid = dice.choice(executors).pid
    return [pid, *testing.agents([pid])]


def two_with_agents(dice: random.Random, executors: list[testing.Executor]) -> list[int]:
    pids = [executor.pid for executor in dice.sample(executors, min(2, len(executors)))]
    return [*pids, *testing.agents(pids)]


def only_agent(dice: random.Random, executors: list[testing.Executor]) -> list[int]:
    return testing.agents([dice.choice(executors).pid])


def run(spark: Any, record: Record, session: Any, killer: RandomKiller, **shape: int) -> Service:
    with session.epoch("chain"):
        with killer:
            rows = chain(spark, str(record.path), pause=0.05, **shape).collect()
        assert session.stats().totals.lost == 0
    service = Service(record.path).read()
    check_one_run(rows, service)
    return service


@pytest.mark.parametrize("ballast", [0, BALLAST])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_executor_is_lost_at_any_time(
    spark: Any, record: Record, seed: int, ballast: int
) -> None:
    dice = random.Random(seed)
    policy = dice.choice(["availability", "eager", "off"])
    killer = RandomKiller(spark, seed, 1, 3.0, with_agent)
    with clonos.attach(spark, spill_policy=policy) as session:
        hops = dice.choice([2, 3])
        run(spark, record, session, killer, hops=hops, ballast=ballast)


@pytest.mark.parametrize("ballast", [0, BALLAST])
@pytest.mark.parametrize("seed", SEEDS)
def test_two_are_lost_at_once_with_depth_two(
    spark: Any, record: Record, seed: int, ballast: int
) -> None:
    killer = RandomKiller(spark, seed, 1, 3.0, two_with_agents)
    with clonos.attach(spark, sharing_depth=2) as session:
        run(spark, record, session, killer, hops=2, ballast=ballast)


def test_the_next_is_lost_before_recovery_is_over(spark: Any, record: Record) -> None:
    killer = RandomKiller(spark, 7, 3, 1.5, with_agent)
    with clonos.attach(spark, sharing_depth="full") as session:
        run(spark, record, session, killer, hops=2)
    assert killer.struck > 1


def test_an_agent_alone_is_lost(spark: Any, record: Record) -> None:
    killer = RandomKiller(spark, 11, 2, 1.0, only_agent)
    with clonos.attach(spark) as session:
        run(spark, record, session, killer, hops=2)


@pytest.mark.parametrize("ballast", [0, BALLAST])
def test_lost_senders_are_replayed_and_only_they(spark: Any, record: Record, ballast: int) -> None:
    """Once consumers on every executor have their frames, no service is asked twice."""
    with clonos.attach(spark, spill_policy="availability") as session, session.epoch("twice"):
        rows = chain(spark, str(record.path), ballast=ballast).collect()
        before = Service(record.path).read()
        victim = testing.executors(spark)[0].pid
        testing.kill(victim, *testing.agents([victim]))
        await_executors(spark)
        again = chain(spark, str(record.path), ballast=ballast).collect()
        totals = session.stats().totals
        after = Service(record.path).read()
    check_one_run(rows, before)
    assert sorted(again) == sorted(rows)
    assert not after.twice
    # The two stages of senders ran twice: those whose frames an agent still had sent them again.
    assert 0 < totals.resent < SENDERS + MIDDLE
    assert totals.ran_replayed == SENDERS + MIDDLE + LAST - totals.resent


def test_a_worker_is_lost_in_the_middle(spark: Any, record: Record) -> None:
    def workers(dice: random.Random, executors: list[testing.Executor]) -> list[int]:
        found = [pid for executor in executors for pid in testing.python_workers(executor.pid)]
        return dice.sample(found, 1) if found else []

    killer = RandomKiller(spark, 3, 3, 0.7, workers)
    with clonos.attach(spark) as session:
        run(spark, record, session, killer, hops=2)
