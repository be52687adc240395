"""What `attach` makes of where things are reached, and of what Spark leaves for them."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructType

import clonos
from clonos import _children, _core, _processes
from clonos._driver.attach import _driver_hosts
from clonos._driver.worker_memory import WORKER_MEMORY, check_worker_memory
from clonos._sources import SocketSource, receiver
from clonos._sources.options import source_options
from clonos._sources.receiver_main import _here, _ports, _reached_at
from clonos.errors import ConfigError
from local_agent import make_config

HTTP, HTTPS = "http://minio.example:9000", "https://s3.example"
S3, AZURE = "s3://bucket/prefix", "abfss://files@account.dfs.core.windows.net/prefix"


@pytest.mark.parametrize(
    ("store", "options", "environment"),
    [
        (S3, {"endpoint": HTTP}, {}),
        (S3, {"aws_endpoint_url": HTTP}, {"AWS_ENDPOINT_URL": "https://s3.example"}),
        (S3, {}, {"AWS_ENDPOINT_URL_S3": HTTP, "ALLOW_HTTP": "true"}),
        (AZURE, {}, {"AZURE_STORAGE_ENDPOINT": HTTP}),
        (AZURE, {"use_emulator": "true"}, {"AZURITE_BLOB_STORAGE_URL": HTTP}),
        ("gs://bucket/prefix", {"google_base_url": HTTP}, {}),
        # That of S3 alone goes before the others, options too.
        (S3, {}, {"AWS_ENDPOINT_URL": HTTPS, "AWS_ENDPOINT_URL_S3": HTTP}),
        (S3, {"endpoint": HTTPS}, {"AWS_ENDPOINT_URL_S3": HTTP}),
    ],
)
def test_a_store_in_clear_is_refused_where_all_else_is_encrypted(
    store: str,
    options: dict[str, str],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"http://minio\.example is not encrypted"):
        _core.try_checkpoint(store, options, 0.2, encrypt=True)


def test_whatever_is_in_such_a_store_is_refused(tmp_path: Path) -> None:
    store: dict[str, Any] = {"checkpoint_dir": S3, "storage_options": {"endpoint": HTTP}}
    config = make_config(tmp_path, encrypt=True, **store)
    for location in (
        _core.Location(S3, config),
        _core.Location(S3, options={"endpoint": HTTP}, encrypt=True),
    ):
        with pytest.raises(ConfigError, match="is not encrypted"):
            _core.inspect(location)


def test_what_listens_everywhere_is_reached_as_spark_is() -> None:
    settings = {"spark.driver.host": "driver.example", "spark.driver.bindAddress": "10.0.0.7"}
    assert _driver_hosts(settings, "0.0.0.0", False) == ("0.0.0.0", "driver.example")
    assert _driver_hosts(settings, "::", False) == ("::", "driver.example")
    assert _driver_hosts(settings, "10.0.0.8", False) == ("10.0.0.8", "")
    assert _driver_hosts(settings, None, False) == ("10.0.0.7", "driver.example")


def test_a_receiver_is_reached_as_it_is_told_on_one_of_its_ports(tmp_path: Path) -> None:
    options = source_options({"reachedAs": "driver.example", "ports": "40000-40002"}, "log")
    assert options.ports == (40000, 40002)
    assert _reached_at(options.reached_as, "0.0.0.0:40001") == "driver.example:40001"
    assert _reached_at("fd00::7", "[::]:40001") == "[fd00::7]:40001"
    assert _reached_at("", "127.0.0.1:40001") == "127.0.0.1:40001"
    assert _here("0.0.0.0:40001") == "127.0.0.1:40001"
    assert _here("[::]:40001") == "[::1]:40001"
    assert _here("10.0.0.7:40001") == "10.0.0.7:40001"
    assert _ports(tmp_path, options.ports) == [40000, 40001, 40002]
    assert _ports(tmp_path, (0, 0)) == [0]
    for before, first in ((40002, 40002), (50000, 40000)):
        (tmp_path / "receiver.json").write_text(f'{{"addr": "driver.example:{before}"}}')
        assert _ports(tmp_path, options.ports)[0] == first
    with pytest.raises(ConfigError, match="ports='no'"):
        source_options({"ports": "no"}, "log")


def test_a_place_of_its_own_is_not_called_as_the_sessions_is() -> None:
    sessions = {"bindHost": "127.0.0.1", "reachedAs": "driver.example"}

    class Ticks(clonos.ReplayableSource):
        defaults = sessions

        @classmethod
        def name(cls) -> str:
            return "ticks"

    def reached_as(**options: str) -> str:
        return source_options(Ticks(options).given_options(), "log").reached_as

    assert reached_as() == reached_as(bindHost="0.0.0.0") == "driver.example"
    assert not reached_as(bindhost="10.0.0.8")
    assert reached_as(bindHost="127.0.0.1") == "driver.example"
    assert reached_as(bindHost="10.0.0.8", reachedAs="own.example") == "own.example"


def test_what_python_passes_over_in_its_path_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", ["", "/some/where", Path("/some/path"), None, "/else"])
    assert _children.environment()["PYTHONPATH"] == "/some/where:/else"


def test_a_receiver_for_which_no_port_is_left_says_which_setting_has_too_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "START_SECONDS", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = {"host": "127.0.0.1", "port": "1", "logDir": str(tmp_path), "name": "full"}
        source = SocketSource({**given, "bindHost": "127.0.0.1", "ports": port})
        spec = receiver.Spec(source, source.log_options(), StructType().add("value", StringType()))
        with pytest.raises(ConfigError, match=rf"ports: none of the ports {port} .*agent_ports"):
            receiver.find_or_start(spec)


def test_a_receiver_that_was_started_here_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    receiver.prepare_folder(str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as gone:
        here = gone.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.2)
        places = {"here": f"127.0.0.1:{here}", "addr": f"127.0.0.1:{other.getsockname()[1]}"}
        (tmp_path / "receiver.json").write_text(json.dumps(places))
        assert receiver.find(tmp_path, encrypt=False, elsewhere=False) is None
        with pytest.raises(TimeoutError):
            other.accept()
        assert receiver._listens(places["addr"])
        assert not receiver._listens(places["here"])


def test_on_other_systems_it_is_said_that_linux_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for ask in (_processes.alive, _processes.parent, _processes.command, _processes.memory):
        with pytest.raises(ConfigError, match="this is darwin"):
            ask(1)
    with pytest.raises(ConfigError, match="this is darwin"):
        next(_processes.pids())


def test_workers_whose_memory_is_limited_are_told_of() -> None:
    memory = 512 << 20
    assert check_worker_memory({}, memory) is None
    assert check_worker_memory({WORKER_MEMORY: "4g"}, memory) is None
    settings = {WORKER_MEMORY: "4096", "spark.executor.cores": "4"}
    assert "1024 MiB of address space: it keeps 213 MiB" in str(
        check_worker_memory(settings, memory)
    )
    with pytest.raises(ConfigError, match="in which none can run"):
        check_worker_memory({**settings, "spark.executor.cores": "16"}, memory)


AGENT = """
import os, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from local_agent import make_config, open_task, start_agent
from clonos import _core
config = make_config(Path(sys.argv[1]), memory_bytes=512 << 20)
agent = start_agent(config)
task = open_task(config, _core.ServiceTask, "x")
for _ in range(300):
    assert task.call_begin("s") is None
    task.call_record("s", True, os.urandom(1 << 20))
    task.settle(task.publish())
print("held")
"""


@pytest.mark.parametrize("limit_mib", [512, 700, 1000])
def test_an_agent_spills_within_the_addresses_that_it_has(tmp_path: Path, limit_mib: int) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit_mib << 20, limit_mib << 20))

    from clonos import _children

    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, limits[1]))
    try:
        environment = _children.environment()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", AGENT, str(tmp_path), tests]
    run: Any = subprocess.run
    done = run(command, preexec_fn=limited, env=environment, capture_output=True, timeout=120)
    assert b"held" in done.stdout, done.stderr.decode()


def test_an_agent_that_has_no_room_says_so() -> None:
    assert _core.memory_within(300 << 20, 512 << 20) == 0
