"""What the process beside the driver answers, to requests that come twice, late or astray."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import clonos
from clonos._connect import answering
from clonos._connect import host as hosts
from clonos._connect.host import Host

NAME = "1 2"


@pytest.fixture
def host(spark: SparkSession) -> Host:
    return Host(clonos.attach(spark), NAME)


@pytest.fixture
def ask(host: Host) -> Callable[..., dict[str, Any]]:
    numbers = itertools.count()

    def answer(what: str, *arguments: Any, **others: Any) -> dict[str, Any]:
        request = {"id": str(next(numbers)), "process": NAME, "what": what, "arguments": arguments}
        return host.answer(request | others)

    return answer


def test_a_run_that_another_client_began_is_not_ended_by_the_one_before(ask: Any) -> None:
    assert ask("begin", "night", 1) == {"answer": None}
    assert ask("begin", "night", 3) == {"answer": None}
    assert "begun by another client" in ask("leave", "night", 1, True)["error"]
    assert ask("leave", "night", 3, True) == {"answer": None}


def test_a_request_that_comes_again_is_done_once(ask: Any) -> None:
    ask("begin", "day", 1)
    for _ in range(2):
        assert ask("leave", "day", 1, True, id="left") == {"answer": None}


def test_a_process_that_takes_no_connection_is_slow_and_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "TIMEOUT_SECONDS", 0.2)
    request = {"what": "config"}
    assert "gone" in answering.pass_on(tmp_path, request)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / answering.SOCKET))
        assert "gone" in answering.pass_on(tmp_path, request)
        listener.listen(1)
        # It accepts none, and its queue is full soon.
        assert [answering.pass_on(tmp_path, request) for _ in range(5)] == [{"later": True}] * 5


def test_what_was_asked_of_the_process_before_is_not_answered(ask: Any) -> None:
    assert "gone" in ask("config", process="1 1")


def test_answers_are_forgotten_and_requests_under_way_are_not(
    ask: Any, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "ANSWERS_MAX", 8)
    monkeypatch.setattr(hosts, "PATIENCE_SECONDS", 0.1)
    goes_on, asked = threading.Event(), []

    def slow() -> str:
        asked.append(1)
        goes_on.wait()
        return "done"

    host._answers["slow"] = slow
    assert ask("slow", id="slow") == {"later": True}
    for _ in range(20):
        ask("config")
    assert len(host._asked) <= 9
    goes_on.set()
    while (told := ask("slow", id="slow")) == {"later": True}:
        pass
    assert told == {"answer": "done"}
    assert asked == [1]


def test_an_epoch_is_begun_after_the_run_before_it_was_left(
    ask: Any, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "PATIENCE_SECONDS", 0.1)
    is_committing, goes_on, order = threading.Event(), threading.Event(), []
    session = host._session

    class Slow:
        def check(self, *of: Any) -> None:
            is_committing.set()
            goes_on.wait()
            session.check(*of)

        def commit(self, *of: Any) -> None:
            order.append("commit")
            session.commit(*of)

    ask("begin", "late", 1)
    host._session = Slow()
    assert ask("leave", "late", 1, True, id="leave") == {"later": True}
    is_committing.wait()
    assert ask("begin", "late", 3, id="begin") == {"later": True}
    assert host._stamps.get("late") is None
    goes_on.set()
    while (told := ask("begin", "late", 3, id="begin")) == {"later": True}:
        pass
    assert told == {"answer": None}
    assert order == ["commit"]
    assert host._stamps["late"] == 3
