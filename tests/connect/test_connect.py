"""``clonos.attach`` on Spark Connect: real servers, and clients in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from connect.server import Server

pytestmark = pytest.mark.timeout(480)
PROGRAMS = Path(__file__).with_name("programs.py")
DIED = 9


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"))
    yield running
    running.kill()


class InProcess:
    """A server that the client starts in its own process."""

    url = "local[2]"


def client(name: str, server: Server | InProcess, folder: Path, code: int = 0) -> Any:
    """What a program of `programs` has found."""
    left = {n: v for n, v in os.environ.items() if n not in {"SPARK_REMOTE", "SPARK_HOME"}}
    done = subprocess.run(
        [sys.executable, PROGRAMS, name, server.url, folder],
        env=left | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr[-6000:]
    return None if code else json.loads(done.stdout.splitlines()[-1])


def test_an_epoch_that_fails_goes_on_with_what_it_has_recorded(
    server: Server, tmp_path: Path
) -> None:
    found = client("epochs", server, tmp_path)
    assert found["replayed"] >= 800
    assert found["agents"] >= 2


def test_a_client_that_dies_is_gone_on_from_by_another(server: Server, tmp_path: Path) -> None:
    client("dies", server, tmp_path, code=DIED)
    found = client("resumes", server, tmp_path)
    # Calls that were under way are made again.
    assert 400 <= found["calls"] < 420
    assert found["replayed"] > 50


def test_what_was_drawn_before_an_executor_was_lost_is_read_behind_it(
    server: Server, tmp_path: Path
) -> None:
    assert client("loses_executors", server, tmp_path)["replayed"] > 0


def test_a_stream_that_starts_again_asks_nothing_twice(server: Server, tmp_path: Path) -> None:
    found = client("streams", server, tmp_path)
    assert found["twice"] == 0
    assert found["rows"] >= 400


def test_a_sink_tells_the_streams_apart_whose_batches_it_takes(
    server: Server, tmp_path: Path
) -> None:
    assert client("sinks_of_batches", server, tmp_path) == [*range(40), *range(100, 140)]


def test_keyed_state_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    found = client("state", server, tmp_path)
    counted = found["counted"]
    assert [counted[str(k)] // 1000 for k in range(5)] == [0, 1, 2, 0, 0]
    assert counted["0"] >= 100
    # The last batch may have been written, and not committed.
    assert all(found["saved"][k] in {n, n - 20} for k, n in counted.items())
    assert found["timers"] >= 5
    assert found["twice"] == 0
    assert found["calls"] >= 25


def test_keyed_state_of_tables(server: Server, tmp_path: Path) -> None:
    found = client("state_of_batches", server, tmp_path)
    assert found["found"][0] == {"0": 7, "1": 7, "2": 6}
    assert len(found["found"]) == 4
    assert len(found["refused"]) == 4


def test_table_functions_answer_once(server: Server, tmp_path: Path) -> None:
    found = client("table_functions", server, tmp_path)
    assert found["rows"] == [4, 399, 2, 36]
    assert found["replayed"] > 400


def test_batch_functions_are_recorded_with_what_they_ask(server: Server, tmp_path: Path) -> None:
    found = client("batch_functions", server, tmp_path)
    assert found["same"] == [True, True]
    assert found["twice"] == 0
    # Of three batches and more: three columns, and one call of the function itself.
    assert found["calls"] >= 2 * 3 * (3 * 50 + 1)


def test_what_is_not_there_is_refused_by_name(server: Server, tmp_path: Path) -> None:
    found = client("refusals", server, tmp_path)
    assert found["refused"] == ["CONFIG"] * 4
    assert len(found["said"]) == 2
    assert all("foreachBatch function over Spark Connect" in said for said in found["said"])


def test_threads_and_names_in_sql_are_recorded_too(server: Server, tmp_path: Path) -> None:
    assert client("threads_and_names", server, tmp_path)["replayed"] > 400


def test_a_process_that_is_killed_is_started_again(server: Server, tmp_path: Path) -> None:
    assert client("loses_the_process", server, tmp_path)


def test_a_client_with_a_server_of_its_own_is_a_client(tmp_path: Path) -> None:
    assert client("threads_and_names", InProcess(), tmp_path)["replayed"] > 400


def test_clients_with_equal_settings_share_an_agent(server: Server, tmp_path: Path) -> None:
    one, other = client("where", server, tmp_path)
    assert one != other
    assert client("where", server, tmp_path) == [one, other]


def test_what_a_server_had_recorded_is_found_by_the_next(tmp_path: Path) -> None:
    first = Server(tmp_path)
    client("dies", first, tmp_path, code=DIED)
    first.kill()
    second = Server(tmp_path, first.port)
    try:
        found = client("resumes", second, tmp_path)
    finally:
        second.kill()
    assert 400 <= found["calls"] < 420
    assert found["replayed"] > 50


@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no Java compiler")
def test_the_class_that_is_sent_is_its_source(tmp_path: Path) -> None:
    import pyspark

    from clonos import _connect

    folder = Path(_connect.__file__).parent
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    command = ["javac", "--release", "17", "-g:none", "-cp", str(jars), "-d", str(tmp_path)]
    subprocess.run([*command, folder / "Gateway.java"], check=True)
    made = (tmp_path / "io" / "clonos" / "Gateway.class").read_bytes()
    assert made == (folder / "Gateway.class").read_bytes()


def test_the_process_beside_a_driver_ends_with_it(tmp_path: Path) -> None:
    from clonos._temporary import private_folder

    before = set(private_folder("connect").iterdir())
    server = Server(tmp_path)
    client("where", server, tmp_path)
    ours = set(private_folder("connect").iterdir()) - before
    assert len(ours) == 2
    server.kill()
    deadline = time.monotonic() + 30
    while any(folder.exists() for folder in ours):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_doctor_looks_around_from_a_client(server: Server, tmp_path: Path) -> None:
    left = {n: v for n, v in os.environ.items() if n not in {"SPARK_REMOTE", "SPARK_HOME"}}
    command = [sys.executable, "-c", "from clonos.cli import main; main()", "doctor"]
    done = subprocess.run(
        [*command, "--master", server.url, "--checkpoint-dir", str(tmp_path)],
        env=left | {"PYSPARK_PYTHON": sys.executable, "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    told = done.stdout + done.stderr[-3000:]
    assert "executors that answered: 2" in done.stdout, told
    assert "checkpoint_dir: all these see it and write there" in done.stdout, told
    assert "a process of Clonos runs beside the Spark driver" in done.stdout, told
    assert "a causal UDF on the executors: 3 agents" in done.stdout, told
    # A server that has no checksum of its shuffles is told of, and all else is well.
    assert done.stdout.count("fail") == done.stdout.count("shuffle checksum is off"), told
