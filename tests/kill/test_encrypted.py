"""An executor killed where Spark encrypts all it sends and spills, and Clonos with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
import scene
from scene import MAP_TASKS, ROWS, Killer, Record, ask, await_executors, check, job

import clonos
from clonos import causal, testing
from clonos._attached import current_config

pytestmark = pytest.mark.timeout(360)

EXECUTORS = 2
# Each answer is so long that agents with the least memory spill.
HASHES = 256


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    settings = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": "of this test",
        "spark.network.crypto.enabled": "true",
        "spark.io.encryption.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    }
    with scene.cluster(EXECUTORS, **settings) as spark:
        yield spark


@pytest.fixture
def spark(cluster: Any) -> Any:
    await_executors(cluster, EXECUTORS)
    return cluster


def kill_with_agent(executors: list[testing.Executor]) -> None:
    pid = executors[0].pid
    testing.kill(pid, *testing.agents([pid]))


def test_what_is_encrypted_is_replayed_after_an_executor_was_killed(
    spark: Any, record: Record
) -> None:
    path = str(record.path)

    @causal("string", uid="answer")
    def answer(row: int) -> str:
        given = ask(path, row)
        noise = (hashlib.sha256(f"{given}/{n}".encode()).hexdigest() for n in range(HASHES))
        return f"{given!r} {''.join(noise)}"

    with clonos.attach(spark, memory="1MiB") as session, session.epoch("encrypted"):
        config = current_config()
        assert config is not None
        assert config.encrypt
        assert config.encrypt_spill
        answered = spark.range(0, ROWS, 1, MAP_TASKS).select("id", answer("id").alias("text"))
        scored = answered.selectExpr("id", "cast(split_part(text, ' ', 1) as double) v")
        with Killer(spark, kill_with_agent) as killer:
            rows = job(spark, scored).collect()
        stats = session.stats()
    assert killer.struck == 1
    check(rows, record.read())
    assert not record.twice
    assert 0 < stats.totals.replayed < ROWS
    assert any(agent.spilled_bytes for agent in stats.agents), "logs were spilled, and read back"
