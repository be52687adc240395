"""Sinks whose drivers are killed in the middle of a commit, or are two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sink_scene as scene
from sink_cases import Case, delta_case, files_case, kafka_case, postgresql_case, sqlite_case
from sink_servers import Kafka, Postgres

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(480)]


@pytest.fixture
def case(request: Any, tmp_path: Path) -> Iterator[Case]:
    """The sink that the test's parameter names, with the server that it needs."""
    sink, _, guarantee = request.param.partition(" ")
    server: Postgres | Kafka | None = None
    if sink == "postgresql":
        server = Postgres()
        made = postgresql_case(server)
    elif sink == "kafka":
        pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
        server = Kafka()
        made = kafka_case(server)
    else:
        made = {"files": files_case, "sqlite": sqlite_case, "delta": delta_case}[sink](tmp_path)
    if guarantee:
        made.options["guarantee"] = guarantee
    yield made
    if server is not None:
        server.close()


SINKS = ["files", "sqlite", "postgresql", "postgresql at_most_once", "kafka", "delta"]


@pytest.mark.parametrize("case", SINKS, indirect=True)
def test_a_driver_killed_in_the_middle_of_a_commit(spark: Any, case: Case, tmp_path: Path) -> None:
    first = scene.feed(tmp_path, 0)
    running = scene.driver(tmp_path, case.sink, case.options, columns=case.columns)
    with running as driver, case.hold():
        scene.wait_until(case.waits, "the commit of the first epoch")
        driver.kill()
    assert scene.offsets(tmp_path) == {0}
    if case.is_held:
        assert case.ids() == []
        assert scene.commits(tmp_path) == set()
    second = scene.feed(tmp_path, 1)
    # Another driver: this process has a JVM of its own.
    scene.run(spark, case.sink, case.options, tmp_path, columns=case.columns)
    lost = first if case.options.get("guarantee") == "at_most_once" else []
    assert case.ids() == [n for n in first + second if n not in lost]


@pytest.mark.parametrize("case", ["sqlite", "postgresql"], indirect=True)
def test_two_drivers_on_one_checkpoint(case: Case, tmp_path: Path) -> None:
    """Each has its copy of the checkpoint, so that Spark itself sees no rival."""
    rows = [n for epoch in range(3) for n in scene.feed(tmp_path, epoch)]
    for name in ("one", "two"):
        metadata = tmp_path / name / "metadata"
        metadata.parent.mkdir()
        metadata.write_text(json.dumps({"id": "6f9f6de4-6a4b-4a77-9e3c-6a8ad8a2d4c1"}))
    with scene.driver(tmp_path, case.sink, case.options, checkpoint="one") as one:
        with scene.driver(tmp_path, case.sink, case.options, checkpoint="two") as two:
            codes = sorted([one.wait(120), two.wait(120)])
            said = one.said() + two.said()
    assert case.ids() == rows
    assert codes == [0, 1]
    assert "EPOCH_FENCED" in said
    assert "Two drivers run on one checkpointLocation" in said
