"""Replayable sources as Spark reads them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import explode, split, window
from versions import since_42

import clonos
from clonos import causal, errors
from clonos._sources.receiver import encrypts, find, prepare_folder
from clonos.testing import wait_until
from sources.sender import Sender

pytestmark = [pytest.mark.spark, pytest.mark.timeout(360)]

COUNT = 30_000


@pytest.fixture
def sender() -> Iterator[Sender]:
    with Sender(COUNT) as serving:
        yield serving


def lines(spark: Any, sender: Sender, folder: Path, **options: Any) -> Any:
    named = {
        "host": "127.0.0.1",
        "port": sender.port,
        "acknowledge": "true",
        "logDir": str(folder),
        **options,
    }
    return spark.readStream.format("clonos-socket").options(**named).load()


def collected(into: dict[int, list[str]], slow: float = 0) -> Any:
    def take(batch: Any, number: int) -> None:
        time.sleep(slow)
        into[number] = [row.value for row in batch.collect()]

    return take


@since_42
def test_each_line_is_in_one_batch_whatever_is_stopped_and_started(
    spark: Any, sender: Sender, tmp_path: Path
) -> None:
    batches: dict[int, list[str]] = {}
    for wanted in (1, COUNT // 2, COUNT):
        source = lines(spark, sender, tmp_path, maxRecordsPerBatch=4_000, numPartitions=3)
        query = (
            source.writeStream.foreachBatch(collected(batches))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        wait_until(
            lambda wanted=wanted: sum(map(len, batches.values())) >= wanted, "rows in the sink", 60
        )
        query.stop()
    rows = [row for number in sorted(batches) for row in batches[number]]
    assert max(map(len, batches.values())) <= 4_000
    assert rows == [f"line {n}" for n in range(COUNT)]


def test_a_source_is_encrypted_as_the_session_is(
    plain_spark: Any, sender: Sender, tmp_path: Path
) -> None:
    batches: dict[int, list[str]] = {}
    with clonos.attach(plain_spark, encrypt=True, checkpoint_dir=tmp_path) as session:
        folder = prepare_folder(str(tmp_path / "sources" / "told"))
        source = session.spark.readStream.format("clonos-socket")
        options = {"host": "127.0.0.1", "port": sender.port, "acknowledge": "true", "name": "told"}
        query = (
            source.options(**options)
            .load()
            .writeStream.foreachBatch(collected(batches))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        wait_until(lambda: sum(map(len, batches.values())) == COUNT, "all rows", 150)
        with pytest.raises(errors.AuthRefused, match="`encrypt`"):
            find(folder, encrypt=False)
        assert encrypts(folder)
        query.stop()
    rows = [row for number in sorted(batches) for row in batches[number]]
    assert rows == [f"line {n}" for n in range(COUNT)]


def test_a_batch_that_runs_again_has_the_same_rows_and_times(
    spark: Any, sender: Sender, tmp_path: Path
) -> None:
    seen: list[list[tuple[str, Any]]] = []

    def fail_once(batch: Any, _number: int) -> None:
        rows = [tuple(row) for row in batch.orderBy("value").collect()]
        if rows:
            seen.append(rows)
            if len(seen) == 1:
                raise RuntimeError("the sink is down")

    def run() -> Any:
        source = lines(spark, sender, tmp_path, includeTimestamp="true", maxRecordsPerBatch=5_000)
        writer = source.writeStream.foreachBatch(fail_once)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    with pytest.raises(StreamingQueryException, match="the sink is down"):
        run().awaitTermination(180)
    query = run()
    wait_until(lambda: len(seen) >= 2, "the second run", 150)
    query.stop()
    assert seen[0] == seen[1]
    assert all(time is not None for _, time in seen[0])


@pytest.mark.kill
def test_the_receiver_is_killed_while_spark_reads(
    spark: Any, sender: Sender, tmp_path: Path
) -> None:
    batches: dict[int, list[str]] = {}
    source = lines(spark, sender, tmp_path, maxRecordsPerBatch=3_000)
    query = (
        source.writeStream.foreachBatch(collected(batches, slow=0.3))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    for wanted in (1, 8_000, 16_000):
        wait_until(
            lambda wanted=wanted: sum(map(len, batches.values())) >= wanted, "rows in the sink", 60
        )
        for pid in _receivers_of(tmp_path):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: sum(map(len, batches.values())) >= COUNT, "all rows", 150)
    query.stop()
    rows = [row for number in sorted(batches) for row in batches[number]]
    assert rows == [f"line {n}" for n in range(COUNT)]


def _receivers_of(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"receiver_main" in command and str(folder).encode() in command:
                found.append(int(entry.name))
    return found


def test_two_queries_of_one_log_are_told_apart(spark: Any, sender: Sender, tmp_path: Path) -> None:
    batches: dict[int, list[str]] = {}
    first = lines(spark, sender, tmp_path).writeStream.foreachBatch(collected(batches))
    query = first.option("checkpointLocation", str(tmp_path / "one")).start()
    wait_until(lambda: batches, "the first query reads", 150)
    second = lines(spark, sender, tmp_path).writeStream.foreachBatch(collected({}))
    other = second.option("checkpointLocation", str(tmp_path / "two")).start()
    with pytest.raises(StreamingQueryException, match=r"SOURCE_IN_USE.*name"):
        other.awaitTermination(180)
    assert query.isActive
    query.stop()


def ticks() -> type:
    """As a user writes one; made here, it travels by value."""

    class Ticks(clonos.ReplayableSource):
        @classmethod
        def name(cls) -> str:
            return "ticks"

        def schema(self) -> str:
            return "symbol string, price double"

        def receive(self, log: Any) -> None:
            while not log.stopping and log.taken < 100:
                start = log.taken
                log.append([(f"s{n % 3}", float(n)) for n in range(start, start + 10)])
                if start == 50:
                    raise RuntimeError("called again")

    return Ticks


def test_a_source_of_the_users_own_ends_with_what_is_available(spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(ticks())
    rows: list[Any] = []
    for _ in range(20):
        source = spark.readStream.format("ticks").option("logDir", str(tmp_path)).load()
        query = (
            source.writeStream.foreachBatch(lambda batch, _n: rows.extend(batch.collect()))
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        assert query.awaitTermination(180)
        if len(rows) >= 100:
            break
    assert [row.price for row in rows] == [float(n) for n in range(100)]


@causal("boolean", uid="odd lines")
def is_odd(value: str) -> bool:
    return int(value.rpartition(" ")[2]) % 2 == 1


@pytest.mark.parametrize("watermark", [False, True])
def test_processing_time_in_windows_and_aggregates(
    spark: Any, session: Any, sender: Sender, tmp_path: Path, watermark: bool
) -> None:
    sender.count = 2_000
    last: dict[Any, int] = {}

    def take(batch: Any, _number: int) -> None:
        last.update({(row.window.start, row.word): row["count"] for row in batch.collect()})

    words = lines(spark, sender, tmp_path, maxRecordsPerBatch=500).where(is_odd("value"))
    words = words.select(explode(split("value", " ")).alias("word")).where("word = 'line'")
    timed = words.withColumn("ts", clonos.functions.now())
    if watermark:
        timed = timed.withWatermark("ts", "10 minutes")
    counts = timed.groupBy(window("ts", "1 second"), "word").count()
    query = (
        counts.writeStream.outputMode("update")
        .foreachBatch(session.foreach_batch(take))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    wait_until(lambda: sum(last.values()) >= 1_000 or query.exception(), "all lines counted", 120)
    query.stop()
    assert sum(last.values()) == 1_000


def test_a_log_that_does_not_belong_to_the_checkpoint_is_an_error(
    spark: Any, sender: Sender, tmp_path: Path
) -> None:
    sender.count = 100
    batches: dict[int, list[str]] = {}

    def run(folder: Path) -> Any:
        source = lines(spark, sender, folder)
        writer = source.writeStream.foreachBatch(collected(batches))
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = run(tmp_path / "log")
    wait_until(lambda: sum(map(len, batches.values())) == 100, "all rows", 150)
    query.stop()
    sender.count = 50
    with pytest.raises(StreamingQueryException, match=r"SOURCE_TRUNCATED.*logDir"):
        run(tmp_path / "another").awaitTermination(180)
