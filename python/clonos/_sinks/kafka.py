"""``clonos-kafka``: each epoch is one Kafka transaction.

The rows travel in the messages of the tasks; the commit sends them with one transactional producer.
The fence is an offset of a consumer group, which Kafka commits in the same transaction: the number
of epochs that are in the topic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from clonos._sinks.columns import python_values
from clonos._sinks.fence import Claim, Driver, Fence, fenced, may_write
from clonos._sinks.kafka_client import confluent_kafka, is_fenced, producing
from clonos._sinks.messages import Staged, pack, unpack
from clonos._sinks.options import Guarantee, Options, refuse
from clonos._sinks.place import Place
from clonos._sinks.writers import Batches, Sink, Target
from clonos.errors import ConfigError

_COLUMNS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
# The offset's metadata holds so many drivers' first epochs; Kafka allows 4096 bytes.
_CLAIMS_MAX = 16
_TRANSACTION_MILLIS = 300_000
_RETRY_PAUSE_SECONDS = 1.0
_QUEUE = {
    "linger.ms": "20",
    "queue.buffering.max.messages": "500000",
    "queue.buffering.max.kbytes": "524288",
}


class KafkaTarget(Target):
    """Topics of a Kafka cluster."""

    known = ("kafka.", "topic", "fenceTopic", "retrySeconds", "maxTaskBytes")

    def __init__(self, options: Options, schema: Any) -> None:
        super().__init__(options, schema)
        self.settings = options.prefixed("kafka.")
        if not self.settings.get("bootstrap.servers"):
            options.text("kafka.bootstrap.servers")
        self.topic = options.maybe("topic")
        self.names = _checked(schema, self.topic)
        self.fence_topic = self.topic or options.text("fenceTopic")
        self.retry = options.seconds("retrySeconds", 60)
        self.limit = options.size("maxTaskBytes", "256MiB")

    @property
    def name(self) -> str:
        """The topic that has the fence."""
        return self.fence_topic

    def stage(self, where: Place, batches: Batches) -> Staged:
        """Pack the rows into the message."""
        rows, packed = pack(batches, self.limit)
        return Staged(where.query, rows, packed)

    def write_now(self, where: Place, batches: Batches) -> Staged:
        """Send a task's rows at once."""
        rows = 0
        with producing({**_QUEUE, "enable.idempotence": "true", **self.settings}) as sender:
            for batch in batches:
                self._send(sender, batch)
                rows += batch.num_rows
        return Staged(where.query, rows, None)

    def commit(self, staged: list[Staged], claim: Claim) -> None:
        """Send the rows and move the fence, in one transaction."""
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            return
        if self.guarantee is Guarantee.AT_MOST_ONCE:
            self._commit_at_most_once(staged, claim)
            return
        kafka = confluent_kafka()
        deadline = time.monotonic() + self.retry
        while True:
            try:
                self._transact(staged, claim)
            except kafka.KafkaException as error:
                if is_fenced(error):
                    raise fenced(claim, None) from error
                if not claim.fenced or time.monotonic() >= deadline:
                    raise
                # Whatever became of it, the fence will say.
                time.sleep(_RETRY_PAUSE_SECONDS)
            else:
                return

    def _transact(self, staged: list[Staged], claim: Claim) -> None:
        settings = {
            **_QUEUE,
            "transaction.timeout.ms": str(_TRANSACTION_MILLIS),
            **self.settings,
            "transactional.id": f"clonos-{claim.query}",
        }
        seconds = max(self.retry, 1)
        with self._consumer(claim) as consumer, producing(settings) as sender:
            producer = sender.producer
            # Ends what an earlier producer of this query had begun, before the fence is read.
            producer.init_transactions(seconds)
            fence, claims = self._read_fence(consumer, seconds)
            me = claim.driver.to_text()
            write = may_write(fence, claims.get(me), claim)
            if not write and me in claims:
                return
            claims.setdefault(me, claim.epoch)
            last = Fence(claim.epoch, claim.driver) if write or fence is None else fence
            producer.begin_transaction()
            if write:
                for batch in _batches(staged):
                    self._send(sender, batch)
            if claim.fenced:
                place, group = self._offset(last, claims), consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction([place], group, seconds)
            producer.commit_transaction(_TRANSACTION_MILLIS / 1000)

    def _commit_at_most_once(self, staged: list[Staged], claim: Claim) -> None:
        with self._consumer(claim) as consumer:
            fence, claims = self._read_fence(consumer, max(self.retry, 1))
            me = claim.driver.to_text()
            write = may_write(fence, claims.get(me), claim)
            claims.setdefault(me, claim.epoch)
            last = Fence(claim.epoch, claim.driver) if write or fence is None else fence
            if claim.fenced:
                consumer.commit(offsets=[self._offset(last, claims)], asynchronous=False)
        if write:
            with producing({**_QUEUE, **self.settings}) as sender:
                for batch in _batches(staged):
                    self._send(sender, batch)

    def _consumer(self, claim: Claim) -> Any:
        settings = {
            **{n: v for n, v in self.settings.items() if n.startswith(_SHARED_SETTINGS)},
            "group.id": f"clonos-{claim.query}",
            "enable.auto.commit": "false",
            # An offset in a transaction that is not decided yet is waited for.
            "isolation.level": "read_committed",
        }
        return closing(confluent_kafka().Consumer(settings))

    def _read_fence(self, consumer: Any, seconds: float) -> tuple[Fence | None, dict[str, int]]:
        place = confluent_kafka().TopicPartition(self.fence_topic, 0)
        (found,) = consumer.committed([place], timeout=seconds)
        if found.error is not None:
            raise confluent_kafka().KafkaException(found.error)
        if found.offset < 0:
            return None, {}
        kept = json.loads(found.metadata or "{}")
        driver = Driver.from_text(kept.get("driver", "unknown"))
        return Fence(found.offset - 1, driver), kept.get("claims", {})

    def _offset(self, fence: Fence, claims: dict[str, int]) -> Any:
        latest = dict(list(claims.items())[-_CLAIMS_MAX:])
        metadata = json.dumps({"driver": fence.driver.to_text(), "claims": latest})
        return confluent_kafka().TopicPartition(
            self.fence_topic, 0, fence.epoch + 1, metadata=metadata
        )

    def _send(self, sender: Any, batch: pa.RecordBatch) -> None:
        lists = {
            name: python_values(batch.column(name)) for name in self.names if name != "headers"
        }
        rows = batch.num_rows
        values = lists["value"]
        keys = lists.get("key") or [None] * rows
        topics = [self.topic] * rows if self.topic else lists["topic"]
        partitions = lists.get("partition")
        headers = _headers(batch.column("headers")) if "headers" in self.names else None
        if partitions is None and headers is None:
            sender.send(topics, values, keys)
        else:
            nothing = [None] * rows
            sender.send_with(topics, values, keys, partitions or nothing, headers or nothing)


# Settings of the producer that a consumer knows, too: where the cluster is, and who we are.
_SHARED_SETTINGS = (
    "bootstrap.servers",
    "security.",
    "sasl.",
    "ssl.",
    "client.",
    "socket.",
    "broker.",
)


def _batches(staged: Iterable[Staged]) -> Iterator[pa.RecordBatch]:
    for message in staged:
        yield from unpack(message.payload)


def _headers(column: pa.Array) -> list[Any]:
    rows = column.to_pylist()
    return [row and [(header["key"], header["value"]) for header in row] for row in rows]


def _checked(schema: Any, topic: str | None) -> list[str]:
    """Return the columns, which are those that Spark's own Kafka sink takes.

    Raises
    ------
    ConfigError
        If one is missing, unknown or of a wrong type.
    """
    types = {field.name: field.dataType.simpleString() for field in schema}
    for name, kind in types.items():
        if kind not in _COLUMNS.get(name, ()):
            may_be = "; ".join(f"{n} ({' or '.join(kinds)})" for n, kinds in _COLUMNS.items())
            message = f"clonos-kafka cannot take column {name} ({kind}); columns may be: {may_be}"
            raise ConfigError(message, "CONFIG")
    if "value" not in types:
        raise ConfigError("clonos-kafka needs a column named value", "CONFIG")
    if topic is None and "topic" not in types:
        raise refuse("topic", None, "give it, or a column named topic and option fenceTopic")
    return list(types)


class KafkaSink(Sink):
    """Topics in Kafka, one transaction per epoch."""

    sink = "clonos-kafka"
    target = KafkaTarget
