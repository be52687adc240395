"""A query that commits its batches late is refused where something would be recorded in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import clonos
from clonos import causal
from clonos.testing import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@causal("long", uid="late commits")
def again(value: int) -> int:
    return value + 1


@causal("long", uid="late commits by value", per="value")
def once(value: int) -> int:
    return value + 1


def start(rows: Any, folder: Path, late: str, handle: Any = None) -> Any:
    writer = rows.writeStream.format("noop") if handle is None else rows.writeStream
    if handle is not None:
        # Spark itself refuses such a sink, unless it is told not to look.
        writer = writer.foreachBatch(handle)
        writer = writer.option("_asyncProgressTrackingOverrideSinkSupportCheck", "true")
    return (
        writer.option("asyncProgressTrackingEnabled", late)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def rates(spark: Any) -> Any:
    return spark.readStream.format("rate").option("rowsPerSecond", 20).load()


@pytest.mark.parametrize("function", [again, once])
def test_a_causal_function_in_it_is_refused_by_name(
    spark: Any, tmp_path: Path, function: Any
) -> None:
    rows = rates(spark).select(function("value"))
    with pytest.raises(StreamingQueryException, match=r"ConfigError.*asyncProgressTrackingEnabled"):
        start(rows, tmp_path, "true").awaitTermination(120)
    # The same query without it.
    query = start(rows, tmp_path, "false")
    wait_until(lambda: (query.lastProgress or {}).get("batchId", -1) >= 2, "batches", 120)
    query.stop()
    assert query.exception() is None


@pytest.mark.parametrize("function", [again, once])
def test_so_it_is_in_a_session_that_nobody_listens_to_yet(
    plain_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    # The first task has to find it, not the thread that looks for such sessions now and then.
    monkeypatch.setattr("clonos._driver.session.EXECUTION_POLL_SECONDS", 3_600.0)
    with clonos.attach(plain_spark):
        rows = rates(plain_spark.newSession()).select(function("value"))
        refused = r"ConfigError.*asyncProgressTrackingEnabled"
        with pytest.raises(StreamingQueryException, match=refused):
            start(rows, tmp_path, "true").awaitTermination(120)


def test_a_batch_function_in_it_is_refused_by_name(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    seen: list[int] = []
    handle = session.foreach_batch(lambda _batch, number: seen.append(number))
    with pytest.raises(StreamingQueryException, match=r"ConfigError.*asyncProgressTrackingEnabled"):
        start(rates(spark), tmp_path, "true", handle).awaitTermination(120)
    assert not seen


def test_a_query_without_them_may_commit_late(spark: Any, tmp_path: Path) -> None:
    query = start(rates(spark).selectExpr("value + 1"), tmp_path, "true")
    wait_until(lambda: (query.lastProgress or {}).get("batchId", -1) >= 2, "batches", 120)
    query.stop()
    assert query.exception() is None
