"""What looks into a checkpoint, and savepoints, in a real S3 server."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3_server
import scene
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import clonos
from clonos.cli import epochs
from clonos.errors import ClonosError, ConfigError

pytestmark = pytest.mark.timeout(600)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LOGS = f"s3://{s3_server.BUCKET}/logs"
SAVED = f"s3://{s3_server.BUCKET}/saved/first"
KEYS = 20


class Sums(StatefulProcessor):
    """Keeps a sum for each key."""

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        total = (self.sum.get() or (0,))[0] + sum(row.n for row in rows)
        self.sum.update((total,))
        yield Row(id=key[0], sum=total)

    def close(self) -> None:
        """End."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[s3_server.Server]:
    with s3_server.running(tmp_path / "s3") as server:
        yield server


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with scene.cluster(2, **{"spark.sql.shuffle.partitions": "3"}) as spark:
        yield spark


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def environment(server: s3_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.options.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)


def command(*arguments: str) -> Any:
    from typer.testing import CliRunner

    from clonos.cli.commands import app

    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, [*arguments])
    assert s3_server.SECRET not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done


def listed() -> dict[str, Any]:
    done = command("epochs", LOGS, "--json")
    assert done.exit_code == 0, done.output
    return {epoch["name"]: epoch for epoch in json.loads(done.output)}


def segments(server: s3_server.Server) -> list[str]:
    return [name for name in server.objects if ".seg" in name]


def open_epochs(session: clonos.Session, names: list[str]) -> None:
    """Record something in epochs that are not committed."""
    from pyspark.sql.functions import col

    @clonos.causal("double", uid="scores")
    def score(number: int) -> float:
        return number + random.random()

    def fail(name: str) -> None:
        with session.epoch(name):
            session.spark.range(40).select(score(col("id"))).collect()
            raise KeyError(name)

    for name in names:
        with pytest.raises(KeyError):
            fail(name)


def test_epochs_in_an_object_store_are_listed_and_dropped(
    spark: Any, server: s3_server.Server, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with clonos.attach(spark, **server.settings()) as session:
        open_epochs(session, ["daily", "weekly"])
        found = listed()
        assert found.keys() == {"daily", "weekly"}
        daily = found["daily"]
        assert daily["folder"].startswith(f"{LOGS}/")
        assert daily["files"] >= 1
        assert daily["bytes"] > 0
        assert 0 <= daily["age_seconds"] < 60
        assert len(daily["applications"]) == 1
        assert "daily" in command("epochs", LOGS).output
        # It was written just now; and it is open, however long ago that was.
        assert daily["in_use"]
        monkeypatch.setattr(epochs, "QUIET_SECONDS", 0)
        assert listed()["daily"]["in_use"]
        refused = command("epochs", f"{LOGS}/", "--drop", "daily")
        assert refused.exit_code == 1
        assert "in use" in refused.output
        done = command("inspect", LOGS, "--json")
        assert done.exit_code == 0, done.output
        reports = [
            r for r in json.loads(done.output)["reports"] if r["epoch"] == {"Named": "daily"}
        ]
        assert reports
        tasks = [task for report in reports for task in report["tasks"]]
        assert sum(task["determinants"].get("results", 0) for task in tasks) >= 1
        # One of them alone, by its own URL.
        done = command("inspect", reports[0]["title"], "--json")
        assert json.loads(done.output)["reports"] == [reports[0]]
    assert not listed()["daily"]["in_use"]
    assert command("epochs", LOGS, "--drop", "monthly").exit_code == 1
    assert command("epochs", LOGS, "--drop", "daily").exit_code == 0
    assert listed().keys() == {"weekly"}
    assert segments(server)
    assert command("epochs", LOGS, "--older-than", "0s").exit_code == 0
    assert listed() == {}
    assert not segments(server)
    claims = [name for name in server.objects if name.endswith(".claim")]
    assert claims, "a claim that was given up stays for a day, as an empty object"
    assert not any(server.objects[name] for name in claims)


def test_commands_take_credentials_as_options_and_tell_none(server: s3_server.Server) -> None:
    given = [f"--storage-option={name}={value}" for name, value in server.options.items()]
    for what in ("epochs", "inspect"):
        done = command(what, LOGS, *given)
        assert done.exit_code == 0, done.output
        wrong = command(what, LOGS, *given, "--storage-option=secret_access_key=another-secret")
        assert wrong.exit_code != 0
        assert LOGS in wrong.output.replace("\n", "")
        for option in ("secret_acces_key=another-secret", "another-secret"):
            unknown = command(what, LOGS, *given, f"--storage-option={option}")
            assert unknown.exit_code == 2
            assert "storage" in unknown.output
            assert "another-secret" not in unknown.output + wrong.output
        assert command(what, "/nowhere", *given).exit_code == 2
        # pathlib leaves one slash of two.
        assert "give it as text" in command(what, str(Path(LOGS))).output


def sums(spark: Any, folder: Path, **options: Any) -> Any:
    files = spark.readStream.schema("id string, n long").option("maxFilesPerTrigger", 1)
    grouped = files.json(str(folder)).groupBy("id")
    return clonos.transform_with_state(
        *(grouped, Sums(), "id string, sum long", "update", "none"), uid="sums", **options
    )


def put(folder: Path, batch: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = [{"id": f"k{key}", "n": key + batch} for key in range(KEYS)]
    (folder / f".{batch}").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f".{batch}").rename(folder / f"{batch}.json")


def run(df: Any, checkpoint: Path) -> tuple[Any, dict[str, int]]:
    """Run a stream over what there is; the query, and the last sum of each key."""
    found: dict[str, int] = {}

    def keep(batch: Any, _number: int) -> None:
        found.update((row.id, row.sum) for row in batch.collect())

    writer = df.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    return query, found


def state(spark: Any, path: str, **options: str) -> Any:
    reader = spark.read.format("clonos-state").option("stateVarName", "sum").options(**options)
    return reader.load(path)


def values(df: Any) -> dict[str, int]:
    return {row.key.id: row.value.n for row in df.collect()}


def test_state_in_an_object_store_is_saved_read_and_begun_with(
    spark: Any, tmp_path: Path, server: s3_server.Server
) -> None:
    for batch in (1, 2):
        put(tmp_path / "in", batch)
    # Nobody but the session knows the credentials.
    with clonos.attach(spark, **server.settings()) as session:
        query, two = run(sums(spark, tmp_path / "in"), tmp_path / "c1")
        assert two == {f"k{key}": 2 * key + 3 for key in range(KEYS)}
        session.savepoint(query, SAVED)
        with pytest.raises(ConfigError, match=f"{SAVED} exists already"):
            session.savepoint(query, SAVED)
        with pytest.raises(ConfigError, match="exists already"):
            session.savepoint(query, LOGS)
        with pytest.raises(ConfigError, match="no keyed state of query nope"):
            session.savepoint("nope", f"{SAVED}-too")
        put(tmp_path / "in", 3)
        _, three = run(sums(spark, tmp_path / "in"), tmp_path / "c1")
        for path, batch, expected in (
            (SAVED, "1", two),
            (LOGS, "2", three),
            (LOGS, "1", two),
        ):
            df = state(spark, path, batchId=batch, numPartitions="3")
            assert values(df) == expected
            plans = df._jdf.queryExecution().toString()
            assert s3_server.SECRET not in plans
            assert s3_server.SECRET not in str(df._jdf.queryExecution().logical().treeString())
        with pytest.raises(Exception, match="neither a savepoint nor a checkpoint_dir") as told:
            state(spark, f"{SAVED}/nowhere").collect()
        assert s3_server.SECRET not in str(told.value)
        with pytest.raises(ConfigError, match="is no savepoint: there is nothing"):
            sums(spark, tmp_path / "in", state_from=f"{SAVED}/nowhere")
        put(tmp_path / "later", 3)
        later = sums(spark, tmp_path / "later", state_from=SAVED, partitions=5)
        assert s3_server.SECRET not in later._jdf.queryExecution().toString()
        assert run(later, tmp_path / "c2")[1] == three
    # Another session does not have them.
    with clonos.attach(spark), pytest.raises(Exception, match=f"of {SAVED}") as told:
        state(spark, SAVED).collect()
    assert s3_server.SECRET not in str(told.value)


def test_savepoints_and_state_are_inspected(
    spark: Any, tmp_path: Path, server: s3_server.Server, environment: None
) -> None:
    put(tmp_path / "in", 1)
    with clonos.attach(spark, **server.settings()) as session:
        query, _ = run(sums(spark, tmp_path / "in"), tmp_path / "c1")
        session.savepoint(query, SAVED)
        server.kill()
        began = time.monotonic()
        with pytest.raises(ClonosError, match=re.escape(f"{SAVED}-2")):
            session.savepoint(query, f"{SAVED}-2")
        assert time.monotonic() - began < 60
        server.start()
        session.savepoint(query, f"{SAVED}-2")
    bucket = f"s3://{s3_server.BUCKET}"
    done = command("inspect", bucket, "--json")
    assert done.exit_code == 0, done.output
    found = {report["title"]: report for report in json.loads(done.output)["reports"]}
    assert {f"savepoint {SAVED}", f"savepoint {SAVED}-2"} <= found.keys()
    assert all(
        found[f"savepoint {name}"]["states"][0]["keys"] == KEYS for name in (SAVED, f"{SAVED}-2")
    )
    done = command("inspect", LOGS, "--json")
    reports = json.loads(done.output)["reports"]
    (report,) = [report for report in reports if report["title"] == f"state in {LOGS}"]
    (kept,) = report["states"]
    assert (kept["operator"], kept["keys"], kept["versions"]) == ("sums", KEYS, "0")
    assert "sums" in command("inspect", SAVED).output
    saved = server.data / s3_server.BUCKET / "saved" / "first"
    (damaged,) = saved.rglob("*.state")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    done = command("inspect", SAVED, "--json")
    assert done.exit_code == 1
    (problem,) = json.loads(done.output)["problems"]
    assert f"{SAVED}/{damaged.name}" in problem
    server.kill()
    done = command("inspect", SAVED, "--json")
    assert done.exit_code == 1
    assert SAVED in json.loads(done.output)["problems"][0]
    assert command("epochs", LOGS).exit_code == 2
