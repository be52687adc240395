"""Settings of `attach` that change what a session does: each is seen to do it."""

from __future__ import annotations

import random
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.functions import spark_partition_id

import clonos
from clonos import _attached, causal, errors
from clonos._attached import current_config

pytestmark = pytest.mark.timeout(240)
# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@causal("double", uid="drawn")
def drawn(_row: Any) -> float:
    return random.random()


def twice(spark: Any) -> tuple[list[Any], list[Any]]:
    """Results of one query that is run two times."""
    query = spark.range(0, 40, 1, 4).select("id", drawn("id").alias("v"))
    return sorted(query.collect()), sorted(query.collect())


def test_at_least_once_records_nothing(plain_spark: Any) -> None:
    with clonos.attach(plain_spark) as session, session.epoch("recorded"):
        first, again = twice(plain_spark)
        assert first == again
    with clonos.attach(plain_spark, guarantee="at_least_once") as session:
        with session.epoch("not recorded"):
            first, again = twice(plain_spark)
        assert not set(first) & set(again)
        assert session.stats().totals.live == 0


@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_frames_are_the_same_rows_compressed_or_not(plain_spark: Any, compression: Any) -> None:
    with clonos.attach(plain_spark, compression=compression) as session, session.epoch("frames"):
        rows = plain_spark.range(0, 2_000, 1, 4).selectExpr("id", "repeat('same ', 40) text")
        sent = clonos.exchange(rows.withColumn("v", drawn("id")), 3, "id")
        found = sent.select("id", "text", spark_partition_id().alias("part")).collect()
    assert sorted(row.id for row in found) == list(range(2_000))
    assert {row.text for row in found} == {"same " * 40}
    assert {row.part for row in found} == {0, 1, 2}


class Again(Exception):
    """The epoch is to be run again."""


def in_another_order(session: Any) -> tuple[list[float], list[float]]:
    """Answers to equal rows, and those given to them in another order when the epoch runs again."""

    def asked(partitions: int) -> list[Any]:
        words = session.spark.range(0, 60, 1, partitions).selectExpr("string(id % 3) word")
        found: list[Any] = words.select("word", drawn("word").alias("v")).collect()
        return found

    with suppress(Again), session.epoch("ordered"):
        rows = asked(4)
        raise Again
    with session.epoch("ordered"):
        again = asked(1)
    return [row.v for row in rows], [row.v for row in again]


def test_equal_rows_in_another_order_are_refused(plain_spark: Any) -> None:
    with clonos.attach(plain_spark) as session:
        with pytest.raises(PySparkException) as refused:
            in_another_order(session)
        divergence = errors.find(refused.value)
    assert isinstance(divergence, errors.ReplayDivergence)
    assert "on_ambiguous" in str(divergence) or "row_key" in str(divergence)


def test_equal_rows_are_given_any_of_their_answers(plain_spark: Any) -> None:
    with clonos.attach(plain_spark, on_ambiguous="any") as session:
        first, again = in_another_order(session)
    assert sorted(first) == sorted(again)


def test_the_drivers_agent_listens_where_it_is_told(plain_spark: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with clonos.attach(plain_spark, driver_host="127.0.0.1", driver_port=port) as session:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        assert f"127.0.0.1:{port}" in {agent.addr for agent in session.stats().agents}
        with session.epoch("told"):
            first, again = twice(plain_spark)
        assert first == again


def test_agents_listen_in_a_range_of_ports(plain_spark: Any) -> None:
    with clonos.attach(plain_spark, agent_ports="41000-41999") as session:
        (addr,) = {agent.addr for agent in session.stats().agents}
        assert 41_000 <= int(addr.rpartition(":")[2]) <= 41_999
    for wrong in ("41999-41000", "40000-", "0-10", "70000", "any", "1-2-3"):
        with pytest.raises(errors.ConfigError, match="agent_ports"):
            clonos.attach(plain_spark, agent_ports=wrong)


def test_nothing_is_encrypted_unless_spark_does_or_attach_is_told(plain_spark: Any) -> None:
    for told in (None, True, False):
        with clonos.attach(plain_spark, encrypt=told) as session, session.epoch(f"told {told}"):
            config = current_config()
            assert config is not None
            assert [config.encrypt, config.encrypt_spill] == [bool(told)] * 2
            first, again = twice(plain_spark)
            assert first == again
    with pytest.raises(errors.ConfigError, match="encrypt='auto'"):
        clonos.attach(plain_spark, encrypt="auto")  # type: ignore[arg-type]


def test_a_port_that_is_taken_is_named(plain_spark: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(errors.ClonosError, match=str(port)):
            clonos.attach(plain_spark, driver_host="127.0.0.1", driver_port=port)


def test_a_row_key_tells_equal_rows_apart(session: Any) -> None:
    equal = session.spark.range(0, 60, 1, 4).selectExpr("id", "'same' word")

    def keyed(partitions: int) -> list[Any]:
        rows = equal.repartition(partitions)
        return sorted(rows.select("id", drawn("word", row_key="id").alias("v")).collect())

    with suppress(Again), session.epoch("keyed"):
        first = keyed(3)
        raise Again
    with session.epoch("keyed"):
        assert keyed(5) == first


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("driver_port", 99_999),
        ("driver_port", -1),
        ("driver_port", "7001"),
        ("driver_host", 3),
        ("host_label", " "),
        ("checkpoint_dir", 3),
        ("checkpoint_dir", b"/tmp"),
        ("spill_dir", 3),
        ("metrics", "x"),
        ("metrics", 5),
    ],
)
def test_what_is_out_of_range_is_named_and_stops_no_session(
    plain_spark: Any, setting: str, value: Any
) -> None:
    with clonos.attach(plain_spark) as session:
        with pytest.raises(errors.ConfigError, match=f"{setting}="):
            clonos.attach(plain_spark, **{setting: value})
        assert session.is_active


def test_an_attach_that_fails_late_leaves_nothing_behind(plain_spark: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(errors.ConfigError, match="metrics="):
            clonos.attach(plain_spark, metrics=address)
    assert _attached.latest() is None
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    assert "clonos-tcp" not in threads, "its agent listens still"


def test_what_is_no_session_is_refused_by_name() -> None:
    for nothing in (None, "spark", 3):
        with pytest.raises(errors.ConfigError, match="is no Spark session"):
            clonos.attach(nothing)  # type: ignore[arg-type]
