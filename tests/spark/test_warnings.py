"""Where a service is used and nothing records it, somebody is told."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread, cloudpickle

import clonos
from clonos import _unrecorded, causal
from clonos.errors import NotRecordedWarning

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@causal("double", uid="drawn")
def drawn(_n: int) -> float:
    return clonos.random.random()


def logged(rows: Iterator[int]) -> list[str]:
    """What the log of a worker says when services are used in it that nothing records."""
    import logging

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("clonos").addHandler(handler)
    for row in rows:
        clonos.time_ns()
        clonos.random.choice([row])
        drawn(row)
    return lines


def test_a_task_that_records_nothing_says_so_once_for_each_place(spark: Any) -> None:
    numbers = spark.sparkContext.parallelize(range(5), 1)
    lines = numbers.mapPartitions(logged).collect()
    assert [line.partition(" was used")[0] for line in lines] == [
        "clonos.time",
        "clonos.random",
        "a call of drawn",
    ]
    assert all("test_warnings.py:" in line and "map_partitions" in line for line in lines)
    assert clonos.map_partitions(numbers, logged).collect() == [], "there it is recorded"


def look() -> None:
    clonos.time()


def in_a_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(look).result()


@pytest.mark.parametrize(
    ("ask", "wrapped", "told"),
    [
        (look, False, "session.foreach_batch(fn)"),
        (look, True, None),
        (in_a_thread, True, "in a thread beside a foreachBatch function"),
    ],
)
def test_a_service_of_a_foreach_batch_function_that_is_not_recorded_is_pointed_at(
    session: Any, monkeypatch: Any, ask: Any, wrapped: bool, told: str | None
) -> None:
    monkeypatch.setattr(_unrecorded, "_seen", set())
    spark = session.spark
    # What was used before, when no such function ran, was no mistake.
    ask()
    seen = threading.Event()

    def write(_batch: Any, _number: int) -> None:
        ask()
        seen.set()

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function = session.foreach_batch(write) if wrapped else write
        query = stream.writeStream.foreachBatch(function).start()
        assert seen.wait(60)
        query.stop()
    ours = [str(w.message) for w in caught if issubclass(w.category, NotRecordedWarning)]
    assert len(ours) == (0 if told is None else 1)
    assert all(told in text for text in ours)


def test_a_thread_beside_an_epoch_is_pointed_at_and_one_that_inherits_belongs_to_it(
    session: Any, spark: Any
) -> None:
    rows = spark.range(0, 20, 1, 2).select("id", drawn("id"))
    found: list[list[Any]] = []

    def run(thread: type[Any]) -> None:
        runner = thread(target=lambda: found.append(rows.collect()))
        runner.start()
        runner.join()

    with pytest.warns(NotRecordedWarning, match=r"InheritableThread") as warned:
        with session.epoch("beside"):
            run(threading.Thread)
    # Others may warn of sockets that are left open.
    (ours,) = [one for one in warned if issubclass(one.category, NotRecordedWarning)]
    assert ours.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotRecordedWarning)
        with session.epoch("inherited"):
            run(InheritableThread)
            assert rows.collect() == found[-1]


@pytest.mark.parametrize("row_key", [None, "id"])
def test_an_epoch_that_was_cut_otherwise_says_that_keys_are_others(
    session: Any, spark: Any, tmp_path: Path, row_key: Any
) -> None:
    asked, told = str(tmp_path / "asked"), str(tmp_path / "told")

    def write(path: str, line: str) -> None:
        with Path(path).open("a") as file:
            file.write(f"{line}\n")

    class File(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            write(told, record.getMessage())

    @causal("string")
    def ask(n: int) -> str:
        log = logging.getLogger("clonos")
        if not any(type(handler).__name__ == "File" for handler in log.handlers):
            log.addHandler(File())
        if n % 10 == 7 and not Path(f"{asked}.mended").exists():
            raise OSError
        key = clonos.idempotency_key()
        write(asked, key)
        return key

    numbers = spark.range(0, 40, 1, 4)
    column = ask("id", **({} if row_key is None else {"row_key": row_key}))
    with session.epoch(f"keys of {row_key}"):
        with pytest.raises(Exception, match="OSError"):
            numbers.select(column).collect()
        assert not Path(told).exists()
        Path(f"{asked}.mended").touch()
        keys = {row[0] for row in numbers.coalesce(2).select(column.alias("key")).collect()}
    assert len(keys) == 40
    lines = Path(told).read_text().splitlines() if Path(told).exists() else []
    assert all("if it is given row_key=" in line for line in lines)
    assert bool(lines) == (row_key is None)
