"""Figures of a session: typed, for Prometheus, and on a screen."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from clonos._driver import metrics
from clonos._stats import Stats
from clonos.cli import top
from clonos.cli.commands import app
from clonos.errors import ConfigError


def report(**operator: int) -> str:
    """The core's report of a session with one operator."""
    agent = {"addr": "127.0.0.1:1", "host": "h", "alive": True, "logs": 2, "memory_bytes": 300}
    score = {"operator": "score", "attempts": 3, "rows": 30, "replayed": 10, "live": 20}
    score |= {"calls": 20, "saved": 10, "bytes": 500, "lost": 0, "call_ns": 4_000_000_000}
    names = "opens closed rows replayed live calls bytes ran_replayed resent discarded lost commits"
    return json.dumps(
        {
            "agents": [agent | {"spilled_bytes": 7, "sent_bytes": 0, "state_bytes": 0}],
            "tasks": [],
            "states": [],
            "operators": [score | operator],
            "totals": dict.fromkeys(names.split(), 4) | {"of a newer core": 1},
        }
    )


def test_what_was_not_done_again_is_told_by_operator() -> None:
    stats = Stats.parse(report())
    (score,) = stats.operators
    assert (score.operator, score.calls, score.saved, score.bytes) == ("score", 20, 10, 500)
    assert score.saved_seconds == 2.0, "ten calls of 0.2 s each"
    assert Stats.parse(report(calls=0)).operators[0].saved_seconds == 0.0
    assert stats.totals.commits == 4
    assert stats.agents[0].memory_bytes == 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_prometheus_reads_the_figures_of_now_until_the_session_stops() -> None:
    address = f"127.0.0.1:{free_port()}"
    reports = iter([Stats.parse(report()), Stats.parse(report(saved=11))])
    stop = metrics.serve(address, lambda: next(reports))

    def scraped() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    first = scraped()
    for line in (
        'clonos_calls_saved_total{operator="score"} 10.0',
        'clonos_rows_replayed_total{operator="score"} 10.0',
        'clonos_logged_bytes_total{operator="score"} 500.0',
        'clonos_saved_seconds{operator="score"} 2.0',
        "clonos_memory_bytes 300.0",
        "clonos_agents 1.0",
        "clonos_commits_total 4.0",
    ):
        assert line in first.splitlines()
    assert 'clonos_calls_saved_total{operator="score"} 11.0' in scraped()
    with pytest.raises(ConfigError, match="metrics="):
        metrics.serve(address, lambda: Stats.parse(report()))
    stop()
    with pytest.raises(OSError, match="refused"):
        scraped()


@pytest.mark.parametrize("value", ["9095", ":9095", "localhost", "localhost:http", "h:70000"])
def test_an_address_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics=.*host:port"):
        metrics.parse_address(value)


def test_addresses() -> None:
    assert metrics.parse_address("127.0.0.1:9095") == ("127.0.0.1", 9095)
    assert metrics.parse_address("[::1]:9095") == ("::1", 9095)


def test_top_shows_operators_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[Any] = [
        [("app-1", Stats.parse(report()))],
        [("app-1", Stats.parse(report(rows=1_000_030)))],
        [],
    ]
    screen = top.Screen(lambda: readings.pop(0))

    def picture() -> str:
        console = Console(width=200)
        with console.capture() as capture:
            console.print(screen.next())
        return capture.get()

    first = picture()
    assert all(word in first for word in ("app-1", "score", "2.0 s", "1 of 1 agents"))
    assert "1,000,030" in picture()
    assert "No running session" in picture()
    monkeypatch.setattr(top, "sessions", list)
    done = CliRunner().invoke(app, ["top", "--once"])
    assert done.exit_code == 0
    assert "No running session" in done.output
