"""The log of a source, in one process and in a receiver's own: real sockets, files and kills."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from clonos import _core, errors
from clonos._sources import HttpSource, SocketSource
from clonos._sources.receiver import (
    Spec,
    encrypts,
    find,
    find_or_start,
    prepare_folder,
    secret_of,
)
from clonos.testing import wait_until
from sources.sender import Sender

SCHEMA = StructType([StructField("value", StringType())])
SECRET = b"s" * 32


def batch(first: int, rows: int, width: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"value": [f"{n}".ljust(width) for n in range(first, first + rows)]})


def receiver(folder: Path, **settings: Any) -> _core.SourceReceiver:
    settings = {"memory": 1 << 20, "disk": 1 << 30, "eager": True, "encrypt": False, **settings}
    folder.mkdir(exist_ok=True)
    return _core.SourceReceiver.start(
        folder=str(folder), secret=SECRET, host="127.0.0.1", ports=[0], **settings
    )


def append(log: _core.SourceReceiver, first: int, rows: int, width: int = 0) -> None:
    log.wait(log.append(batch(first, rows, width), rows))


def values(client: _core.SourceClient, start: int, end: int) -> list[str]:
    found: list[str] = []
    while start < end:
        parts, start = client.read(start, end)
        for rows, _ in parts:
            found += rows.field("value").to_pylist()
    return [value.strip() for value in found]


def connect(log: _core.SourceReceiver, *, encrypt: bool = False) -> _core.SourceClient:
    return _core.SourceClient.connect(log.addr, SECRET, encrypt)


def test_any_range_is_read_again_after_a_restart(tmp_path: Path) -> None:
    log = receiver(tmp_path / "log", memory=2_000)
    for first in range(0, 300, 30):
        append(log, first, 30)
    log.stop()
    log = receiver(tmp_path / "log", memory=2_000)
    client = connect(log)
    assert client.bounds() == (0, 300)
    assert log.taken == 300
    assert values(client, 17, 243) == [str(n) for n in range(17, 243)]
    append(log, 300, 5)
    assert values(client, 295, 305) == [str(n) for n in range(295, 305)]
    log.stop()


def test_what_is_committed_goes_and_positions_go_on(tmp_path: Path) -> None:
    log = receiver(tmp_path / "log", disk=64_000)
    for first in range(0, 1_000, 100):
        append(log, first, 100, width=60)
        connect(log).commit(first + 50)
    assert connect(log).bounds() == (950, 1_000)
    with pytest.raises(errors.CorruptLog, match=r"SOURCE_TRUNCATED.*950.*logDir"):
        values(connect(log), 100, 200)
    log.stop()
    log = receiver(tmp_path / "log", disk=64_000)
    first, safe = connect(log).bounds()
    assert (first <= 950, safe) == (True, 1_000)
    append(log, 1_000, 1)
    assert values(connect(log), 1_000, 1_001) == ["1000"]
    log.stop()


def test_a_full_log_holds_back_until_something_is_committed(tmp_path: Path) -> None:
    log = receiver(tmp_path / "log", disk=40_000, memory=1_000)
    written: list[int] = []

    def write() -> None:
        for first in range(0, 4_000, 100):
            # Random text does not compress.
            rows = pa.record_batch({"value": [os.urandom(30).hex() for _ in range(100)]})
            log.wait(log.append(rows, 100))
            written.append(first)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    wait_until(lambda: log.is_full(6_000), "the log is full", 60)
    time.sleep(0.3)
    held = len(written)
    assert held < 10
    client = connect(log)
    while thread.is_alive():
        client.commit(client.bounds()[1])
        time.sleep(0.01)
    stats = json.loads(client.stats())
    assert stats["safe"] == 4_000
    assert stats["held_back_ms"] > 200
    assert stats["disk_bytes"] <= 40_000
    log.stop()


def test_a_damaged_log_is_an_error_and_a_torn_end_is_not(tmp_path: Path) -> None:
    log = receiver(tmp_path / "log")
    for first in range(0, 300, 100):
        append(log, first, 100)
    log.stop()
    (file,) = (tmp_path / "log").rglob("*.seg")
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    log = receiver(tmp_path / "log")
    assert connect(log).bounds() == (0, 200)
    log.stop()
    (second,) = (other for other in (tmp_path / "log").rglob("*.seg") if other != file)
    second.unlink()
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(errors.CorruptLog, match=file.name):
        receiver(tmp_path / "log")


def test_availability_forgets_what_was_in_memory_but_never_reuses_a_position(
    tmp_path: Path,
) -> None:
    log = receiver(tmp_path / "log", eager=False)
    append(log, 0, 100)
    _, safe = connect(log).bounds()
    log.stop()
    log = receiver(tmp_path / "log", eager=False)
    first, _ = connect(log).bounds()
    assert first >= safe
    log.stop()


def test_a_reader_needs_the_secret_and_there_is_one(tmp_path: Path) -> None:
    log = receiver(tmp_path / "log")
    with pytest.raises(errors.AuthRefused):
        _core.SourceClient.connect(log.addr, b"x" * 32, encrypt=False)
    first, second = connect(log), connect(log)
    first.claim("process 1 on this host")
    with pytest.raises(errors.SourceInUse, match=r"process 1 on this host.*name"):
        second.claim("process 2")
    first.release()
    second.claim("process 2")
    assert not log.is_idle(0)
    log.stop()


def test_a_reader_encrypts_as_the_receiver_does(tmp_path: Path) -> None:
    for encrypt in (False, True):
        log = receiver(tmp_path / f"log-{encrypt}", encrypt=encrypt)
        append(log, 0, 1_000)
        assert values(connect(log, encrypt=encrypt), 0, 1_000) == [str(n) for n in range(1_000)]
        with pytest.raises(errors.AuthRefused, match=r"`encrypt`.*of a source") as refused:
            connect(log, encrypt=not encrypt)
        assert refused.value.condition == "ENCRYPTION_DIFFERS"
        log.stop()


def test_a_reader_that_is_gone_makes_room_for_the_next(tmp_path: Path) -> None:
    log = receiver(tmp_path / "log")
    first = connect(log)
    first.claim("the driver before")
    del first
    connect(log).claim("the driver after")
    log.stop()


# --- receivers in processes of their own --------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[Spec, _core.SourceClient, Path]]]:
    folders: list[Path] = []

    def started(kind: type, **options: Any) -> tuple[Spec, _core.SourceClient, Path]:
        options = {"logDir": str(tmp_path), "lingerSeconds": "20", **options}
        source = kind({name: str(value) for name, value in options.items()})
        spec = Spec(source, source.log_options(), SCHEMA)
        client, _ = find_or_start(spec)
        folders.append(prepare_folder(spec.options.folder))
        return spec, client, folders[-1]

    yield started
    for folder in folders:
        kill(folder)


def kill(folder: Path) -> None:
    pid = json.loads((folder / "receiver.json").read_text())["pid"]
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

    # It is nobody's child here, or ours: either way it goes.
    def gone() -> bool:
        return find(folder, encrypt=encrypts(folder)) is None

    wait_until(gone, "the receiver is gone", 60)


def test_a_receiver_that_runs_on_with_another_setting_is_told_of(start: Any) -> None:
    with Sender(10) as sender:
        spec, client, _ = start(
            SocketSource, host="127.0.0.1", port=sender.port, acknowledge="true", encrypt="true"
        )
        wait_until(lambda: client.bounds()[1] == sender.count, "all lines are safe", 150)
        assert values(client, 0, sender.count) == [f"line {n}" for n in range(sender.count)]
        with pytest.raises(errors.AuthRefused, match="`encrypt`"):
            find_or_start(replace(spec, options=replace(spec.options, encrypt=False)))


@pytest.mark.kill
def test_every_acknowledged_line_is_there_once_however_often_the_receiver_is_killed(
    start: Any,
) -> None:
    with Sender(60_000) as sender:
        spec, client, folder = start(
            SocketSource, host="127.0.0.1", port=sender.port, acknowledge="true"
        )
        for _ in range(4):
            before = sender.safe
            wait_until(
                lambda before=before: sender.safe > before or sender.safe == sender.count,
                "more lines",
                30,
            )
            kill(folder)
            client, _ = find_or_start(spec)
        wait_until(lambda: sender.safe == sender.count, "all lines are safe", 150)
        first, safe = client.bounds()
        assert (first, safe) == (0, sender.count)
        assert values(client, 0, safe) == [f"line {n}" for n in range(sender.count)]


@pytest.mark.kill
def test_a_second_receiver_of_one_log_leaves_it_to_the_first(start: Any) -> None:
    with Sender(10) as sender:
        spec, client, folder = start(
            SocketSource, host="127.0.0.1", port=sender.port, acknowledge="true"
        )
        wait_until(lambda: client.bounds()[1] == 10, "all lines are there", 60)
        # The first looks dead to whoever starts the second.
        addr = (folder / "receiver.json").read_text()
        (folder / "receiver.json").unlink()
        threading.Timer(1.0, lambda: (folder / "receiver.json").write_text(addr)).start()
        again, _ = find_or_start(spec)
        assert again.bounds() == (0, 10)
        assert secret_of(folder)


def test_lines_that_are_none_are_counted_and_kept_aside(start: Any) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    lines = [b"good", b"\xff\xfe bad", b"x" * 3_000, b"", b"last\r"]
    _, client, folder = start(
        SocketSource,
        host="127.0.0.1",
        port=server.getsockname()[1],
        malformed="aside",
        maxLineBytes=1_000,
    )
    connection, _ = server.accept()
    connection.sendall(b"\n".join(lines) + b"\nno end")
    wait_until(lambda: client.bounds()[1] == 3, "three rows", 60)
    assert values(client, 0, 3) == ["good", "", "last"]
    stats = json.loads(client.stats())
    assert (stats["too_long"], stats["not_utf8"], stats["rows"]) == (1, 1, 3)
    aside = [json.loads(line) for line in (folder / "aside.jsonl").read_text().splitlines()]
    assert [(line["why"], line["len"]) for line in aside] == [("too-long", 3_000), ("not-utf8", 6)]
    assert bytes.fromhex(aside[1]["head"]) == b"\xff\xfe bad"
    connection.close()
    wait_until(
        lambda: client.bounds()[1] == 4, "the line without an end, as Spark's source has it", 20
    )
    # It connects again.
    connection, _ = server.accept()
    connection.sendall(b"\xff again\n")
    wait_until(lambda: json.loads(client.stats())["not_utf8"] == 2, "the next connection", 60)
    connection.close()
    server.close()


def post(port: int, body: bytes, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/events", body, headers)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, answer


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.kill
def test_posted_events_are_safe_when_they_are_answered(start: Any) -> None:
    port = free_port()
    spec, client, folder = start(
        HttpSource, port=port, path="/events", token="t0ken", maxBodyBytes=500
    )
    wait_until(lambda: _listens(port), "the endpoint listens", 60)
    allowed = {"Authorization": "Bearer t0ken"}
    # One that connects and says nothing is in nobody's way.
    silent = socket.create_connection(("127.0.0.1", port))
    status, answer = post(port, b'{"n": 1}', **allowed)
    assert (status, json.loads(answer)["events"]) == (200, 1)
    lines = {**allowed, "Content-Type": "application/x-ndjson"}
    assert post(port, b"two\nthree\n", **lines)[0] == 200
    kill(folder)
    client, _ = find_or_start(spec)
    assert values(client, 0, 3) == ['{"n": 1}', "two", "three"]
    wait_until(lambda: _listens(port), "the endpoint listens again", 60)
    assert post(port, b"x", Authorization="Bearer no")[0] == 401
    assert post(port, b"\xff", **allowed)[0] == 400
    assert post(port, b"", **allowed)[0] == 400
    assert post(port, b"x" * 501, **allowed)[0] == 413
    assert client.bounds()[1] == 3
    silent.close()


def test_a_full_endpoint_tells_clients_to_come_back(start: Any) -> None:
    port = free_port()
    _, client, _ = start(HttpSource, port=port, path="/events", disk=20_000, maxBodyBytes="1MiB")
    wait_until(lambda: _listens(port), "the endpoint listens", 60)
    answers = [post(port, os.urandom(3_000).hex().encode())[0] for _ in range(8)]
    assert answers[0] == 200
    assert answers[-1] == 503
    client.commit(client.bounds()[1])
    assert post(port, b"again")[0] == 200


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_receiver_that_does_not_start_says_why(start: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="host and port"):
        start(SocketSource)
    where = {"host": "localhost", "port": "1"}
    with pytest.raises(errors.ConfigError, match=r"'maxlinebyte'.*did you mean 'maxLineBytes'"):
        SocketSource({**where, "maxlinebyte": "1"}).schema()
    with pytest.raises(errors.ConfigError, match=r"'body'.*it has .*maxBodyBytes"):
        HttpSource({"port": "1", "body": "1"}).schema()
    for wrong in ({"malformed": "keep"}, {"maxLineBytes": "1TiB"}, {"acknowledge": "perhaps"}):
        with pytest.raises(errors.ConfigError, match=next(iter(wrong))):
            SocketSource({**where, **wrong}).schema()
    with pytest.raises(errors.ConfigError, match=r"spillPolicy.*eager"):
        start(SocketSource, host="h", port=1, spillPolicy="often")
    with pytest.raises(errors.ConfigError, match=r"option name.*letters"):
        start(SocketSource, host="h", port=1, name="../up")
    folder = tmp_path / "sources" / "broken"
    folder.mkdir(parents=True)
    receiver(folder).stop()
    (file,) = folder.rglob("*.seg")
    file.write_bytes(b"CLSG\x63\x00" + b"?" * 40)
    with pytest.raises(errors.AgentError, match="version"):
        start(SocketSource, host="127.0.0.1", port=1, name="broken")


def test_inspect_shows_what_was_received(start: Any) -> None:
    with Sender(100) as sender:
        encrypted = {"acknowledge": "true", "encrypt": "true"}
        _, client, folder = start(SocketSource, host="127.0.0.1", port=sender.port, **encrypted)
        wait_until(lambda: client.bounds()[1] == 100, "all lines", 60)
        done = subprocess.run(
            [sys.executable, "-m", "clonos", "inspect", "--json", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
    reports = json.loads(done.stdout)["reports"]
    assert (reports[0]["safe"], reports[0]["rows"]) == (100, 100)
    assert done.returncode == 0, done.stdout
