"""Everything killed, the store too, with the checkpoint in real servers of two kinds."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import azure_server
import expiring_keys
import faulty_store
import pytest
import s3_server
import scene
import state_driver
import store_server
import stories
from dying import PATIENCE_SECONDS, await_mark, driver, log_of
from pyspark import cloudpickle
from scene import ROWS, Record

import clonos
from clonos import testing

pytestmark = pytest.mark.timeout(1200)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[s3_server.Server]:
    with s3_server.running(tmp_path / "s3") as server:
        yield server


@pytest.fixture(params=[s3_server, azure_server], ids=["s3", "abfss"])
def any_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[store_server.Server]:
    with store_server.running(request.param.Server, tmp_path / "store") as server:
        yield server


def test_a_batch_job_goes_on_where_it_was_from_an_object_store(
    tmp_path: Path, any_server: store_server.Server
) -> None:
    record = stories.killed_batch_job(tmp_path, attach=any_server.settings())
    assert any(".seg" in name for name in any_server.objects)
    stories.the_same_job_goes_on(tmp_path, record, attach=any_server.settings())
    # Of a claim that was given up, an empty object stays; of a killed agent, that it may write.
    kept = (".incarnation", ".alive")
    left = [name for name, size in any_server.objects.items() if size and not name.endswith(kept)]
    assert not left, "what is committed is removed"
    assert any_server.secret not in log_of(tmp_path).read_text()


def test_a_stream_killed_in_a_batch_gives_it_again_from_an_object_store(
    tmp_path: Path, any_server: store_server.Server
) -> None:
    stories.killed_stream_goes_on(tmp_path, attach=any_server.settings())


def test_keyed_state_goes_on_from_an_object_store(
    tmp_path: Path, any_server: store_server.Server
) -> None:
    for batch in range(3):
        state_driver.put(tmp_path, batch)
    plan: dict[str, Any] = {"attach": any_server.settings(), "pause": 0.0}
    with driver("state_driver.py", tmp_path, hang=(1, "written"), **plan) as process:
        await_mark(tmp_path / "written 1", process)
    assert any(name.endswith(".delta") for name in any_server.objects)
    with driver("state_driver.py", tmp_path, hang=None, **plan) as process:
        assert process.wait(PATIENCE_SECONDS) == 0, log_of(tmp_path).read_text()[-3000:]
    state_driver.check(tmp_path, 3)
    questions = [what for what, _ in state_driver.asked(tmp_path)]
    assert len(set(questions)) == len(questions)


def test_a_store_that_dies_and_comes_back_costs_nothing_but_time(
    tmp_path: Path, server: s3_server.Server
) -> None:
    plan: dict[str, Any] = {"kind": "batch", "partitions": 6, "die": False, "pause": 0.03}
    record = Record(tmp_path / "calls.txt")

    def wait_for(rows: int) -> None:
        def are_asked() -> bool:
            return record.path.exists() and record.path.read_text().count("\n") > rows

        testing.wait_until(are_asked, f"{rows} rows to be asked about", PATIENCE_SECONDS)

    plan |= {"attach": server.settings(io_timeout=20.0), "again": True}
    with driver("driver.py", tmp_path, master="local-cluster[2,1,1024]", **plan) as process:
        wait_for(ROWS // 6)
        server.away(2.0)
        wait_for(ROWS // 3)
        assert not record.read().twice, "a publish waits that long"
        # Longer than that: tasks fail, and are run again.
        server.away(8.0)
        await_mark(tmp_path / "done", process)
    given = {tuple(line.split(" ")) for line in record.path.read_text().splitlines()}
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert sorted(row for row, _ in rows) == list(range(ROWS))
    assert {(str(row), repr(value)) for row, value in rows} <= given
    # What a task was answered while it could record nothing went with it, and nobody has seen it.
    # That what was seen is not asked again, the driver has checked.


def test_what_is_wrong_with_a_store_is_said_when_a_session_attaches(
    tmp_path: Path, server: s3_server.Server
) -> None:
    spark = scene.start("local[2]")
    try:
        wrong = {**server.options, "secret_access_key": "another-secret"}
        with pytest.raises(clonos.errors.ClonosError) as told:
            clonos.attach(spark, **server.settings(storage_options=wrong))
        for part in ("checkpoint_dir", f"s3://{s3_server.BUCKET}/logs"):
            assert part in str(told.value)
        assert "another-secret" not in str(told.value)
        with pytest.raises(clonos.errors.ConfigError, match="acces_key_id"):
            clonos.attach(spark, **server.settings(storage_options={"acces_key_id": "x"}))
        with pytest.raises(clonos.errors.ConfigError, match="storage_options"):
            clonos.attach(spark, checkpoint_dir=tmp_path, storage_options=server.options)
        with clonos.attach(spark, **server.settings()) as session:
            shown = [
                repr(session),
                repr(session.config),
                str(spark.sparkContext.getConf().getAll()),
            ]
            assert not any(s3_server.SECRET in text for text in shown)
            with pytest.raises(clonos.errors.ConfigError, match="path='hdfs://bucket/savepoint'"):
                session.savepoint("query", "hdfs://bucket/savepoint")
        server.kill()
        with pytest.raises(clonos.errors.ClonosError, match=f"s3://{s3_server.BUCKET}/logs"):
            clonos.attach(spark, **server.settings(io_timeout=2.0))
    finally:
        spark.stop()


def test_doctor_tries_the_store(server: s3_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from clonos.cli.commands import app

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.options.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    url = f"s3://{s3_server.BUCKET}/doctor"
    done = CliRunner().invoke(app, ["doctor", "--checkpoint-dir", url])
    text = " ".join(done.output.split())
    assert f"ok checkpoint_dir {url}: a put takes" in text, text
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    done = CliRunner().invoke(app, ["doctor", "--checkpoint-dir", url])
    assert f"fail checkpoint_dir {url}" in " ".join(done.output.split())
    assert "another-secret" not in done.output
    assert not server.objects


def test_requests_that_fail_and_answers_that_are_lost_change_nothing(
    tmp_path: Path, server: s3_server.Server
) -> None:
    with faulty_store.before(server.options["endpoint"], seed=7) as proxy:
        options = {**server.options, "endpoint": proxy.endpoint}
        settings = server.settings(storage_options=options, io_timeout=60.0)
        record = stories.killed_batch_job(tmp_path, attach=settings)
        stories.the_same_job_goes_on(tmp_path, record, attach=settings)
        # Each of them, of more than a hundred requests.
        assert all(proxy.seen[fault] for fault in faulty_store.FAULTS), proxy.seen
        assert proxy.seen["PUT"] > 20, proxy.seen
    left = [name for name, size in server.objects.items() if size]
    assert not [name for name in left if name.endswith(".seg")], "what is committed is removed"


@clonos.causal("double", flush="call")
def drawn_slowly(_row: int) -> float:
    time.sleep(0.2)
    return random.random()


def test_credentials_that_expire_are_renewed(
    tmp_path: Path, server: s3_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    options = {name: server.options[name] for name in ("endpoint", "region")}
    settings = server.settings(storage_options=options)
    rows, answers = 90, []
    with expiring_keys.of(server, tmp_path) as keys:
        for name, value in keys.environment.items():
            monkeypatch.setenv(name, value)
        for run in range(2):
            spark = scene.start("local[2]")
            try:
                session = clonos.attach(spark, **settings)
                df = spark.range(0, rows, 1, 2).withColumn("v", drawn_slowly("id"))
                begun = keys.given
                # An epoch that fails keeps what it has recorded.
                with contextlib.suppress(LookupError), session.epoch("slowly"):
                    answers.append({row.id: row.v for row in df.collect()})
                    raise LookupError
                if run == 0:
                    assert keys.given - begun >= 3, "other keys while tasks were at work"
                session.stop()
            finally:
                spark.stop()
    assert answers[1] == answers[0]
    assert len(set(answers[0].values())) == rows
