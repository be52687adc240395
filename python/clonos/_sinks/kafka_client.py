"""A Kafka producer that is done only when the cluster has everything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clonos.errors import ConfigError

_FLUSH_SECONDS = 300.0
_FULL_QUEUE_SECONDS = 0.05


def confluent_kafka() -> Any:
    """Return the client library.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import confluent_kafka as module
    except ImportError as error:
        message = (
            "clonos-kafka needs confluent-kafka on the driver and the executors: "
            "pip install clonos[kafka]"
        )
        raise ConfigError(message, "CONFIG") from error
    return module


def is_fenced(error: Any) -> bool:
    """Return whether a newer producer of the same query has taken over."""
    codes = confluent_kafka().KafkaError
    fences = {codes._FENCED, codes.INVALID_PRODUCER_EPOCH, codes.PRODUCER_FENCED}
    return error.args[0].code() in fences


class Sender:
    """Hands rows to a producer as fast as it takes them.

    A transaction that lacks a row does not commit; only without one must each row be asked about.
    """

    def __init__(self, settings: dict[str, str]) -> None:
        self.failed: Any = None
        self.producer = confluent_kafka().Producer(settings)
        self._more = {} if "transactional.id" in settings else {"on_delivery": self._told}

    def _told(self, error: Any, _message: object) -> None:
        if error is not None and self.failed is None:
            self.failed = error

    def send(self, *columns: list[Any]) -> None:
        """Send rows given as topics, values and keys, of which the producer chooses partitions."""
        produce, more = self.producer.produce, self._more
        for topic, value, key in zip(*columns, strict=True):
            try:
                produce(topic, value, key, **more)
            except BufferError:
                self._make_room()
                produce(topic, value, key, **more)
        self.producer.poll(0)

    def send_with(self, *columns: list[Any]) -> None:
        """Send rows given as topics, values, keys, partitions and headers; the last may be None."""
        for topic, value, key, partition, headers in zip(*columns, strict=True):
            more = {**self._more, "partition": -1 if partition is None else partition}
            if headers:
                more["headers"] = headers
            try:
                self.producer.produce(topic, value, key, **more)
            except BufferError:
                self._make_room()
                self.producer.produce(topic, value, key, **more)
        self.producer.poll(0)

    def _make_room(self) -> None:
        # Half of the queue: the producer goes on while the next rows come.
        half = len(self.producer) // 2
        while len(self.producer) > half:
            self.producer.poll(_FULL_QUEUE_SECONDS)


@contextmanager
def producing(settings: dict[str, str]) -> Iterator[Sender]:
    """Give a sender; at the end all that it was handed is in the cluster, or it is an error."""
    sender = Sender(settings)
    try:
        yield sender
    except BaseException:
        sender.producer.purge(in_flight=False)
        raise
    left = sender.producer.flush(_FLUSH_SECONDS)
    if sender.failed is not None or left:
        kafka = confluent_kafka()
        error = sender.failed or kafka.KafkaError(kafka.KafkaError._TIMED_OUT)
        raise kafka.KafkaException(error)
