"""Images of values and of plain functions: the same for equal ones, in any process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos import _held, _services
from clonos._code import code_fingerprint
from clonos._plain import plain_identity
from clonos._worker import clients
from clonos._worker.images import content_bytes

PLAIN = """
from pyspark import cloudpickle
import sys
from clonos._plain import plain_identity

class Rules:
    first = "w"

def wanted(word):
    return word in {WORDS} and word[0] == Rules.first

print(plain_identity(cloudpickle.dumps((wanted, "boolean"))))
"""


@given(st.sets(st.text(max_size=4), max_size=30))
def test_sets_have_one_image_however_they_were_filled(words: set[str]) -> None:
    other: set[str] = set()
    for word in sorted(words, reverse=True):
        other.add(word)
    assert content_bytes({"seen": [words]}) == content_bytes({"seen": [other]})
    assert content_bytes(words) != content_bytes(frozenset(words))


def test_functions_count_by_what_they_do_and_hold() -> None:
    def adding(number: Any) -> Any:
        return lambda value: value + number

    def taking(number: Any) -> Any:
        return lambda value: value - number

    assert content_bytes(adding([1])) == content_bytes(adding([1]))
    assert content_bytes(adding([1])) != content_bytes(adding([2]))
    assert content_bytes(adding([1])) != content_bytes(taking([1]))
    with pytest.raises(TypeError):
        content_bytes(threading.Lock())


def test_an_array_counts_by_its_values_however_they_lie_in_memory() -> None:
    import numpy as np

    table = np.arange(12.0).reshape(3, 4)
    assert content_bytes(table[:, 1]) == content_bytes(np.array([1.0, 5.0, 9.0]))
    assert content_bytes(np.asfortranarray(table)) == content_bytes(table)
    assert content_bytes(table) != content_bytes(table.astype("float32"))
    assert content_bytes(table) != content_bytes(table.reshape(4, 3))


def test_what_holds_itself_has_an_image() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert content_bytes(ring) == content_bytes(ring)


def identity(words: str, seed: int) -> str:
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    program = PLAIN.replace("{WORDS}", words)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_plain_function_is_the_same_in_each_process() -> None:
    words = '{"a1", "b1", "c1", "d1", "e1", "f1"}'
    assert identity(words, 1) == identity(words, 2)
    assert identity(words, 1) != identity(words.replace("a1", "a2"), 1)
    assert plain_identity(b"no pickle") != plain_identity(pickle.dumps(1))


def test_normal_numbers_are_of_the_task() -> None:
    assert isinstance(_services.random.gauss(0, 1), float)
    assert _services.random.gauss_next is None


def test_packages_of_the_user_are_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lib" / "site-packages"
    monkeypatch.syspath_prepend(str(folder))
    _held._library_folders.cache_clear()
    _held.is_users_file.cache_clear()
    try:
        assert not _held.is_users_file(str(folder / "somelib" / "__init__.py"))
        assert _held.is_users_file(str(tmp_path / "job.py"))
    finally:
        monkeypatch.undo()
        _held._library_folders.cache_clear()
        _held.is_users_file.cache_clear()


def test_what_a_library_notes_at_a_function_is_no_change() -> None:
    import tenacity

    @tenacity.retry(stop=tenacity.stop_after_attempt(2))
    def lookup(row: int) -> int:
        return row

    def function(row: int) -> int:
        return lookup(row)

    before = code_fingerprint(function)
    lookup(1)
    assert code_fingerprint(function) == before


def test_a_client_is_watched_by_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr(clients, "IDLE_SECONDS", 0.3)
    setup = pickle.dumps(list)
    threads = threading.active_count()
    for _ in range(20):
        clients.give_back(clients.lend(setup, asynchronous=False), worker_ends=False)
    assert threading.active_count() <= threads + 1
    client = clients.lend(setup, asynchronous=False)
    time.sleep(0.5)
    assert clients.lend(setup, asynchronous=False) is client, "it is in use"
    for _ in range(2):
        clients.give_back(client, worker_ends=False)
    deadline = time.monotonic() + 10
    while client in clients._clients.values() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client not in clients._clients.values()
