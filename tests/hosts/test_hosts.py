"""Hosts that are switched off, cut off, silenced one way, slowed down or paused, and come back.

`make test-hosts`; not part of `make test`. ``CLONOS_HOSTS_SEEDS`` is the number of random stories.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from netns import Hosts
from scene import MAP_TASKS, ROWS, Killer, Record, ask, check, job

import clonos
from clonos import causal

pytestmark = pytest.mark.timeout(600)
SEEDS = int(os.environ.get("CLONOS_HOSTS_SEEDS", "4"))
# Longer than Spark waits for a host that says nothing.
LONG_SECONDS = 25.0


def scored(spark: Any, record: Record, seconds: float = 0.0) -> Any:
    path = str(record.path)

    @causal("double", uid="score")
    def score(row: int) -> float:
        time.sleep(seconds)
        return ask(path, row)

    return spark.range(0, ROWS, 1, MAP_TASKS).select("id", score("id").alias("v"))


def run(
    spark: Any, record: Record, strike: Callable[[], None], end: Callable[[], None] | None = None
) -> Any:
    """Run a job of two stages; `strike` once some rows of the second are out, and `end` that later.

    The session outlives both, so that who comes back meets those who have gone on.
    """
    healing: list[threading.Timer] = []

    def begin() -> None:
        strike()
        if end is not None:
            healing.append(later(LONG_SECONDS, end))

    with clonos.attach(spark) as session, session.epoch("hosts"):
        with Killer(spark, lambda _executors: begin()) as killer:
            rows = job(spark, scored(spark, record)).collect()
        for timer in healing:
            timer.join()
        stats = session.stats()
    assert killer.struck == 1
    # All rows of the first stage were stable by then: each has its answer, none was asked again.
    check(rows, record.read())
    assert not record.twice
    return stats


def later(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


def test_a_host_is_switched_off(hosts: Hosts, spark: Any, record: Record) -> None:
    assert run(spark, record, lambda: hosts.switch_off(1)).totals.replayed


def test_a_host_is_cut_off_and_comes_back(hosts: Hosts, spark: Any, record: Record) -> None:
    run(spark, record, lambda: hosts.cut_off(2), lambda: hosts.reconnect(2))


def test_one_host_does_not_hear_another(hosts: Hosts, spark: Any, record: Record) -> None:
    run(spark, record, lambda: hosts.silence(1, 2), lambda: hosts.hear(1, 2))


def test_a_host_stands_still_and_goes_on(hosts: Hosts, spark: Any, record: Record) -> None:
    run(spark, record, lambda: hosts.pause(3), lambda: hosts.resume(3))


def test_a_host_is_slow_for_a_while(hosts: Hosts, spark: Any, record: Record) -> None:
    run(spark, record, lambda: hosts.slow_down(2), lambda: hosts.speed_up(2))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_story(hosts: Hosts, spark: Any, record: Record, seed: int) -> None:
    """Anything happens to one host at any time, for any length, also while the first stage runs."""
    dice = random.Random(seed)
    host = dice.randint(1, 3)
    other = dice.choice([number for number in range(4) if number != host])
    begin, end = dice.choice(
        [
            (lambda: hosts.cut_off(host), lambda: hosts.reconnect(host)),
            (lambda: hosts.silence(host, other), lambda: hosts.hear(host, other)),
            (lambda: hosts.pause(host), lambda: hosts.resume(host)),
            (lambda: hosts.slow_down(host), lambda: hosts.speed_up(host)),
            (lambda: hosts.switch_off(host), lambda: hosts.switch_on(host)),
        ]
    )
    at, length = dice.uniform(0.0, 6.0), dice.choice([0.5, 3.0, 8.0, LONG_SECONDS])
    with clonos.attach(spark) as session, session.epoch(f"story {seed}"):
        timers = [later(at, begin), later(at + length, end)]
        answers = scored(spark, record, 0.01)
        rows = job(spark, answers).collect()
        for timer in timers:
            timer.join()
        calls = len(record.path.read_text().splitlines())
        again = answers.collect()
    assert sorted(row.id for row in rows) == list(range(ROWS))
    # What the consumers saw is what is recorded, all of it.
    assert sorted(rows) == sorted(again)
    assert len(record.path.read_text().splitlines()) == calls
