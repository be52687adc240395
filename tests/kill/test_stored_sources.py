"""Logs of sources in a real S3 server: machines that are lost, and receivers that come back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s3_server
import source_driver
from dying import PATIENCE_SECONDS, await_mark, driver, log_of
from pyspark.sql.types import StringType, StructField, StructType

from clonos import _core, errors
from clonos._sources import SocketSource
from clonos._sources.receiver import Spec, find_or_start
from clonos.cli import inspection
from clonos.testing import wait_until
from sources.sender import PatientSender, Sender

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]

COUNT = 40_000
SCHEMA = StructType([StructField("value", StringType())])
URL = f"s3://{s3_server.BUCKET}/logs"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[s3_server.Server]:
    with s3_server.running(tmp_path / "s3") as server:
        yield server


class Machine:
    """What a machine has of its own: its temporary files, and the processes that write them."""

    def __init__(self) -> None:
        # Sockets lie there, whose names are short.
        self.temporary = Path(tempfile.mkdtemp(prefix="m-", dir="/tmp"))

    def receivers(self) -> list[int]:
        """Process ids of receivers."""
        files = self.temporary.rglob("receiver.json")
        return [json.loads(file.read_text())["pid"] for file in files]

    def logs(self) -> str:
        """What its receivers have said."""
        return "".join(file.read_text() for file in self.temporary.rglob("receiver.log"))

    def signal(self, number: int) -> None:
        """Send all receivers a signal."""
        for pid in self.receivers():
            os.kill(pid, number)

    def lose(self) -> None:
        """Kill what runs there, and remove what it had."""
        for pid in self.receivers():
            # It may have ended.
            if _runs(pid):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.fixture
def machine() -> Iterator[Callable[[], Machine]]:
    machines: list[Machine] = []

    def made() -> Machine:
        machines.append(Machine())
        return machines[-1]

    yield made
    for one in machines:
        one.lose()


def test_a_driver_whose_machine_is_lost_goes_on_elsewhere_with_every_line_once(
    tmp_path: Path,
    server: s3_server.Server,
    machine: Callable[[], Machine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = machine(), machine()
    with Sender(COUNT) as sender:
        plan: dict[str, Any] = {"attach": server.settings(), "port": sender.port, "count": COUNT}
        monkeypatch.setenv("TMPDIR", str(first.temporary))
        with driver("source_driver.py", tmp_path, hang=(1, "taken"), **plan) as process:
            await_mark(tmp_path / "taken 1", process)
            read = len(source_driver.lines_of(tmp_path))
            # More than Spark has seen: only the log has it.
            wait_until(lambda: sender.safe > read + 1_000, "more lines", PATIENCE_SECONDS)
            first.signal(signal.SIGKILL)
        assert first.receivers()
        assert s3_server.SECRET not in first.logs()
        acknowledged = sender.safe
        first.lose()
        monkeypatch.setenv("TMPDIR", str(second.temporary))
        with driver("source_driver.py", tmp_path, hang=None, **plan) as process:
            assert process.wait(PATIENCE_SECONDS) == 0, log_of(tmp_path).read_text()[-3000:]
        assert sender.told[-1][0] >= acknowledged, "it goes on behind what was acknowledged"
    lines = source_driver.lines_of(tmp_path)
    assert lines == [f"line {n}" for n in range(COUNT)]
    assert s3_server.SECRET not in log_of(tmp_path).read_text()
    # What Spark has committed is removed, part by part, and in the background.
    segments = [name for name in server.objects if ".seg" in name]
    assert segments
    wait_until(lambda: not any("/batch-0/" in name for name in server.objects), "a removal", 100)


@pytest.fixture
def source(
    server: s3_server.Server, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Machine, Sender], SocketSource]:
    """Make a source as a machine would, with credentials from the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.options.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)

    def made(machine: Machine, sender: Sender) -> SocketSource:
        monkeypatch.setattr(tempfile, "tempdir", str(machine.temporary))
        options = {"host": "127.0.0.1", "port": str(sender.port), "acknowledge": "true"}
        return SocketSource({**options, "logDir": URL, "maxBackoffSeconds": "1"})

    return made


def started(source: SocketSource) -> _core.SourceClient:
    """Return a connection to the receiver, of which it is the reader."""
    client, _ = find_or_start(Spec(source, source.log_options(), SCHEMA))
    client.claim("a test")
    return client


def ask_again(client: _core.SourceClient) -> None:
    """Ask a receiver until it has something to say."""
    for _ in range(300):
        client.bounds()
        time.sleep(0.1)


def values(client: _core.SourceClient) -> list[str]:
    found: list[str] = []
    start, end = client.bounds()
    while start < end:
        parts, start = client.read(start, end)
        for rows, _ in parts:
            found += rows.field("value").to_pylist()
    return found


def test_a_receiver_that_was_stopped_and_goes_on_acknowledges_nothing_and_writes_for_nobody(
    machine: Callable[[], Machine], source: Callable[[Machine, Sender], SocketSource]
) -> None:
    count = 200_000
    old, new, last = machine(), machine(), machine()
    with PatientSender(count) as sender:
        sender.allowed = count // 2
        of_old = started(source(old, sender))
        wait_until(lambda: bool(sender.told) and sender.told[0][-1] > 1_000, "some lines", 100)
        (pid,) = old.receivers()
        old.signal(signal.SIGSTOP)
        sender.allowed = count
        of_new = started(source(new, sender))
        wait_until(lambda: sender.told[-1][-1] == count, "all lines", 100)
        old.signal(signal.SIGCONT)
        with pytest.raises(errors.SourceInUse, match=rf"{URL}.*took it over"):
            ask_again(of_old)
        wait_until(lambda: sender.ended > 0, "the old one's connection to end", 100)
        # What it was told of before may still be on its way; nothing is told that is not there.
        assert sender.told[0][-1] <= sender.told[1][0]
        assert values(of_new) == [f"line {n}" for n in range(count)]
        del of_old
        wait_until(lambda: not _runs(pid), "the old one to end", 100)
        assert "has lost its log" in old.logs()
        # Nor does it write for whoever comes third.
        assert values(started(source(last, sender))) == [f"line {n}" for n in range(count)]
        told = {name: str(value) for name, value in os.environ.items() if name.startswith("AWS_")}
        assert told["AWS_SECRET_ACCESS_KEY"] not in old.logs() + new.logs() + last.logs()


def test_a_driver_whose_receiver_died_does_not_take_the_log_back_from_another(
    machine: Callable[[], Machine], source: Callable[[Machine, Sender], SocketSource]
) -> None:
    here, elsewhere = machine(), machine()
    with PatientSender(1_000) as sender:
        reader = source(here, sender).streamReader(SCHEMA)
        wait_until(lambda: reader.latestOffset()["position"] == 1_000, "all lines", 100)
        # Once it is its own receiver that it stands in for.
        here.signal(signal.SIGKILL)
        wait_until(lambda: reader.latestOffset()["position"] == 1_000, "it to be back", 100)
        other = source(elsewhere, sender).streamReader(SCHEMA)
        assert other.latestOffset()["position"] == 1_000
        here.signal(signal.SIGKILL)
        time.sleep(0.5)
        with pytest.raises(errors.SourceInUse, match="took it over"):
            reader.latestOffset()
        assert other.latestOffset()["position"] == 1_000
        reader.stop()
        other.stop()


def test_a_store_that_is_away_holds_the_sender_back_and_loses_nothing(
    server: s3_server.Server,
    machine: Callable[[], Machine],
    source: Callable[[Machine, Sender], SocketSource],
) -> None:
    count = 100_000
    with PatientSender(count) as sender:
        sender.allowed = count // 2
        client = started(source(machine(), sender))
        wait_until(lambda: bool(sender.told) and sender.told[0][-1] > 1_000, "some lines", 100)
        # Longer than any request is tried again.
        server.kill()
        sender.allowed = count
        time.sleep(13.0)
        assert sender.safe == client.bounds()[1] <= count // 2
        server.start()
        wait_until(lambda: sender.safe == count, "all lines", 100)
        assert values(client) == [f"line {n}" for n in range(count)]
        reports, problems = inspection.look(URL)
        assert not problems
        assert any(report.get("failed_writes", 0) > 0 for report in reports), reports
        assert values(started(source(machine(), sender))) == [f"line {n}" for n in range(count)]


def test_what_is_wrong_with_a_place_is_said_without_its_secrets() -> None:
    where = {"host": "localhost", "port": "1"}
    for wrong in ("s3://key:hunter2@bucket/logs", "hdfs://user:hunter2@host/logs"):
        with pytest.raises(errors.ConfigError, match="logDir='") as told:
            SocketSource({**where, "logDir": wrong}).schema()
        assert "hunter2" not in str(told.value)
    with pytest.raises(errors.ConfigError, match=r"logDir='s3://'.*bucket"):
        SocketSource({**where, "logDir": "s3://"}).schema()
    with pytest.raises(errors.ConfigError, match=r"logDir='hdfs://host/logs'.*s3://"):
        SocketSource({**where, "logDir": "hdfs://host/logs"}).schema()
