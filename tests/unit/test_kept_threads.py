"""Threads that stay, for calls by threads that Python did not start."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

import pytest

from clonos._driver.kept_threads import KeptThreads

PATIENCE_SECONDS = 60.0


def on_new_thread(call: Callable[[], Any]) -> Any:
    """Call it on a thread that Python's `threading` has not heard of, as the core's are."""
    answers: list[Any] = []
    done = threading.Event()

    def run() -> None:
        answers.append(call())
        done.set()

    _thread.start_new_thread(run, ())
    assert done.wait(PATIENCE_SECONDS)
    return answers[0]


def test_calls_one_after_the_other_are_on_one_thread_that_keeps_what_is_its_own() -> None:
    own, kept = threading.local(), KeptThreads()

    def count() -> int:
        own.calls = getattr(own, "calls", 0) + 1
        return own.calls

    counted = kept.runs(count)
    assert [on_new_thread(counted) for _ in range(5)] == [1, 2, 3, 4, 5]
    kept.end()


def test_a_call_that_waits_holds_up_no_other() -> None:
    kept, go = KeptThreads(), threading.Event()
    waits, sets = kept.runs(go.wait), kept.runs(go.set)
    waiting = [threading.Thread(target=waits, args=(PATIENCE_SECONDS,)) for _ in range(10)]
    for thread in waiting:
        thread.start()
    on_new_thread(sets)
    for thread in waiting:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in waiting)
    kept.end()


def test_what_a_call_raises_is_raised_to_its_caller() -> None:
    kept = KeptThreads()

    def fails(what: str) -> None:
        raise RuntimeError(what)

    with pytest.raises(RuntimeError, match="no such stage"):
        kept.runs(fails)("no such stage")
    kept.end()


def test_after_the_end_callers_make_their_calls_themselves() -> None:
    kept = KeptThreads()
    named = kept.runs(threading.get_ident)
    assert named() != threading.get_ident()
    kept.end()
    assert named() == threading.get_ident()
