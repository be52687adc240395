"""`clonos-kafka` against a real broker, which is also killed while a query runs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sink_scene as scene
from sink_servers import Kafka

from clonos._sinks.fence import Claim, Driver, EpochFenced
from clonos._sinks.kafka import KafkaTarget
from clonos._sinks.options import Options
from clonos._sinks.place import Place

kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
SINK = "clonos-kafka"


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    started = Kafka()
    yield started
    started.close()


@pytest.fixture
def topic(broker: Kafka) -> str:
    return broker.new_topic()


def options_for(broker: Kafka, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.servers, "topic": topic, **more}


def run(spark: Any, options: dict[str, str], folder: Path, padding: int = 0) -> None:
    scene.run(spark, SINK, options, folder, columns=scene.keyed(padding))


def target_of(broker: Kafka, topic: str, spark: Any) -> KafkaTarget:
    schema = spark.range(1).selectExpr("string(id) AS value").schema
    return KafkaTarget(Options(SINK, options_for(broker, topic), KafkaTarget.known), schema)


def staged(target: KafkaTarget, query: str, value: str) -> list[Any]:
    import pyarrow as pa

    batches = iter([pa.record_batch({"value": [value]})])
    return [target.stage(Place(query, "0", 0, "a"), batches)]


def test_each_epoch_is_written_once(spark: Any, broker: Kafka, topic: str, tmp_path: Path) -> None:
    options = options_for(broker, topic)
    wanted = scene.feed(tmp_path, 0) + scene.feed(tmp_path, 1)
    run(spark, options, tmp_path)
    assert broker.ids(topic) == wanted
    assert scene.forget_commit(tmp_path / "checkpoint") == 1
    wanted += scene.feed(tmp_path, 2)
    run(spark, options, tmp_path)
    assert broker.ids(topic) == wanted
    assert {m.key().decode() for m in broker.messages(topic)} == {f"word {n}" for n in range(5)}


def test_a_broker_that_is_down_only_delays(
    spark: Any, broker: Kafka, topic: str, tmp_path: Path
) -> None:
    options = options_for(broker, topic)
    wanted = scene.feed(tmp_path, 0)
    run(spark, options, tmp_path)
    wanted += scene.feed(tmp_path, 1)
    broker.stop()
    starter = threading.Timer(3, broker.start)
    starter.start()
    run(spark, options, tmp_path)
    starter.join()
    assert broker.ids(topic) == wanted


def test_at_least_once_writes_again(spark: Any, broker: Kafka, topic: str, tmp_path: Path) -> None:
    options = options_for(broker, topic, guarantee="at_least_once")
    first, second = scene.feed(tmp_path, 0), scene.feed(tmp_path, 1)
    run(spark, options, tmp_path)
    scene.forget_commit(tmp_path / "checkpoint")
    run(spark, options, tmp_path)
    assert broker.ids(topic) == sorted(first + second + second)


def test_at_most_once_loses_what_was_between(
    spark: Any, broker: Kafka, topic: str, tmp_path: Path
) -> None:
    options = options_for(broker, topic, guarantee="at_most_once")
    first = scene.feed(tmp_path, 0)
    run(spark, options, tmp_path)
    scene.feed(tmp_path, 1)
    # A row that Kafka does not take: the fence has moved when that shows.
    with pytest.raises(Exception, match=r"Message size too large|MSG_SIZE_TOO_LARGE"):
        run(spark, {**options, "kafka.message.max.bytes": "1000"}, tmp_path, padding=5_000)
    third = scene.feed(tmp_path, 2)
    run(spark, options, tmp_path)
    found = broker.ids(topic)
    assert len(found) == len(set(found)), "nothing is doubled"
    assert set(first + third) <= set(found)


def test_of_two_drivers_the_slower_is_fenced(spark: Any, broker: Kafka, topic: str) -> None:
    target, query = target_of(broker, topic, spark), uuid.uuid4().hex
    one, two = Driver("one", 1, "1"), Driver("two", 2, "2")

    def commit(epoch: int, driver: Driver, value: str) -> None:
        target.commit(staged(target, query, value), Claim(query, epoch, driver, str(epoch)))

    commit(0, one, "0 of one")
    commit(0, two, "0 of two")  # as after a restart: dropped
    commit(1, two, "1 of two")
    with pytest.raises(EpochFenced, match=r"host two, pid 2.*host one, pid 1"):
        commit(1, one, "1 of one")
    assert sorted(m.value() for m in broker.messages(topic)) == [b"0 of one", b"1 of two"]


def test_a_producer_that_is_overtaken_is_fenced(spark: Any, broker: Kafka, topic: str) -> None:
    target, query = target_of(broker, topic, spark), uuid.uuid4().hex
    send = KafkaTarget._send

    def overtaken(self: KafkaTarget, sender: Any, batch: Any) -> None:
        send(self, sender, batch)
        settings = {"bootstrap.servers": broker.servers, "transactional.id": f"clonos-{query}"}
        kafka.Producer(settings).init_transactions(10)

    claim = Claim(query, 0, Driver("one", 1, "1"), "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaTarget, "_send", overtaken)
        with pytest.raises(EpochFenced, match="has taken over"):
            target.commit(staged(target, query, "lost"), claim)
    assert broker.messages(topic) == []


def test_batch_jobs_with_every_column(spark: Any, broker: Kafka, topic: str) -> None:
    rows = spark.range(6).selectExpr(
        "binary(string(id)) AS key",
        "binary(string(id)) AS value",
        f"'{topic}' AS topic",
        "int(id % 2) AS partition",
        "array(named_struct('key', 'h', 'value', binary('x'))) AS headers",
    )
    options = {"kafka.bootstrap.servers": broker.servers, "fenceTopic": topic, "epoch": "one"}
    for _ in range(2):
        rows.write.format(SINK).options(**options).mode("append").save()
    found = broker.messages(topic)
    assert sorted((int(m.value()), m.partition()) for m in found) == [(n, n % 2) for n in range(6)]
    assert all(m.headers() == [("h", b"x")] for m in found)


def test_columns_and_options_are_checked(spark: Any, broker: Kafka, topic: str) -> None:
    wrong = [
        ("id", {}, "cannot take column id"),
        ("string(id) AS key", {}, "needs a column named value"),
        ("string(id) AS value", {"topic": ""}, "topic"),
    ]
    for column, more, says in wrong:
        writer = spark.range(1).selectExpr(column).write.format(SINK)
        with pytest.raises(Exception, match=says):
            writer.options(**options_for(broker, topic) | more).mode("append").save()
