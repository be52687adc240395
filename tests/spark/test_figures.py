"""What a session tells of itself: figures by operator, names of services, nothing left behind."""

from __future__ import annotations

import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import clonos
from clonos import causal

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 20
SECONDS = 0.01


@causal("long", uid="slow")
def slow(n: int) -> int:
    time.sleep(SECONDS)
    return n


@causal("long", uid="asks", record="services")
def asks(n: int) -> int:
    def answer(value: int) -> int:
        time.sleep(SECONDS)
        return value

    return clonos.call(answer, n)


def operator(session: Any, name: str) -> Any:
    (found,) = (one for one in session.stats().operators if one.operator == name)
    return found


@pytest.mark.parametrize("function", [slow, asks], ids=["result", "services"])
def test_what_was_not_done_again_is_counted_by_operator(
    session: Any, spark: Any, function: Any
) -> None:
    rows = spark.range(0, ROWS, 1, 2).select(function("id"))
    with session.epoch("figures"):
        rows.collect()
        made = operator(session, function.uid)
        assert (made.rows, made.live, made.calls, made.saved) == (ROWS, ROWS, ROWS, 0)
        assert made.call_ns >= ROWS * SECONDS * 1e9
        assert made.saved_seconds == 0
        rows.collect()
    after = operator(session, function.uid)
    assert (after.replayed, after.calls, after.saved) == (ROWS, ROWS, ROWS), "after the commit, too"
    assert after.saved_seconds >= ROWS * SECONDS
    assert after.call_ns == made.call_ns
    assert not session.stats().tasks


def test_a_service_that_differs_is_named(session: Any, spark: Any, tmp_path: Path) -> None:
    changed = tmp_path / "changed"

    def price(n: int) -> int:
        return n

    def stock(n: int) -> int:
        return n

    def either(n: int) -> int:
        return clonos.call(stock if changed.exists() else price, n)

    rows = spark.range(0, 5, 1, 1).select(causal("long", uid="e", record="services")(either)("id"))

    def run_twice() -> None:
        with session.epoch("named"):
            rows.collect()
            changed.touch()
            rows.collect()

    with pytest.raises(Exception, match="ReplayDivergence") as raised:
        run_twice()
    found = clonos.errors.find(raised.value)
    assert found is not None
    assert "recorded: a call of service" in found.message
    recorded, _, asked = found.message.partition("asked: ")
    assert recorded.rstrip("; ").endswith("price")
    assert "stock" in asked


def test_metrics_are_served_and_nothing_is_left_behind(plain_spark: Any, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with clonos.attach(plain_spark, metrics=address, spill_dir=tmp_path / "spill"):
        plain_spark.range(0, ROWS, 1, 2).select(slow("id")).collect()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert f'clonos_calls_total{{operator="slow"}} {ROWS}.0' in text
        assert list((tmp_path / "spill").iterdir()) == []
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/metrics", timeout=10)
