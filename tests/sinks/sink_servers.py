"""Real servers for tests of sinks, started for one module and stopped at its end."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest

import maven


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def postgres_programs() -> Path | None:
    """Return the folder of the server's programs, which Debian keeps off the search path."""
    found = shutil.which("pg_ctl")
    if found and shutil.which("initdb"):
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return folders[-1].parent if folders else None


class Postgres:
    """A PostgreSQL server in a private folder, on a loopback port."""

    def __init__(self) -> None:
        programs = postgres_programs()
        if programs is None:
            pytest.skip("no PostgreSQL server is installed (pg_ctl, initdb)")
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="clonos-postgres-"))
        # The server refuses to run as root.
        self._user = "nobody" if os.getuid() == 0 else None
        if self._user:
            shutil.chown(self._folder, self._user)
        self.port = free_port()
        self.url = f"postgresql://clonos@127.0.0.1:{self.port}/postgres"
        self._data = self._folder / "data"
        self._run("initdb", "-D", self._data, "-U", "clonos", "-A", "trust", "--no-sync")
        self.start()

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._programs / program), *map(str, arguments)]
        extra: dict[str, object] = {}
        if self._user:
            entry = pwd.getpwnam(self._user)
            extra = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        done = subprocess.run(
            command,
            check=False,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            **extra,
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self._folder}"
        self._run(
            "pg_ctl", "-D", self._data, "-w", "-l", self._folder / "log", "-o", options, "start"
        )

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; ``immediate`` is as good as pulling the plug."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def is_up(self) -> bool:
        """Return whether something listens."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        """Stop the server and remove what it left."""
        try:
            if self.is_up():
                self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


KAFKA = "4.1.0"


def kafka_jars() -> Path:
    """Return the folder of the broker's jars."""
    return maven.jars("Kafka broker", f"kafka-{KAFKA}", {"org.apache.kafka:kafka_2.13": KAFKA})


class Kafka:
    """One Kafka broker that is its own controller, in a private folder, on loopback."""

    def __init__(self) -> None:
        java = shutil.which("java")
        if java is None:
            pytest.skip("no Kafka broker: java is not installed")
        self._folder = Path(tempfile.mkdtemp(prefix="clonos-kafka-"))
        port, controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.servers}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._folder / "data"),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        path = self._folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._java = [java, "-Xmx512m", "-cp", f"{kafka_jars()}/*"]
        self._settings = str(path)
        self._process: subprocess.Popen[bytes] | None = None
        format_it = ["kafka.tools.StorageTool", "format", "-t", "clonosTestsAAAAAAAAAAA", "-c"]
        done = subprocess.run(
            [*self._java, *format_it, self._settings], check=False, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
        self.start()

    def start(self) -> None:
        """Start the broker and wait until it answers."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with (self._folder / "log").open("ab") as log:
            command = [*self._java, "kafka.Kafka", self._settings]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        for _ in range(60):
            try:
                admin.list_topics(timeout=1)
            except KafkaException:
                assert self._process.poll() is None, (self._folder / "log").read_text()
            else:
                return
        pytest.fail("the broker does not answer")

    def new_topic(self) -> str:
        """Make a topic of two partitions; return its name."""
        from confluent_kafka.admin import AdminClient, NewTopic

        name = f"words-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(name, 2, 1)])[name].result()
        return name

    def messages(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """Return what a reader of a topic finds."""
        import confluent_kafka as kafka

        settings = {
            "bootstrap.servers": self.servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": "true",
        }
        consumer, found, ends = kafka.Consumer(settings), [], 0
        consumer.assign([kafka.TopicPartition(topic, n, 0) for n in (0, 1)])
        while ends < 2:
            message = consumer.poll(10)
            assert message is not None, "the broker says nothing"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == kafka.KafkaError._PARTITION_EOF
                ends += 1
        consumer.close()
        return found

    def ids(self, topic: str) -> list[int]:
        """Return the ids in the messages of committed transactions."""
        return sorted(json.loads(message.value())["id"] for message in self.messages(topic))

    def stop(self) -> None:
        """Kill the broker."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Kill the broker and remove what it left."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
