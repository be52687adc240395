"""Drivers, executors and workers killed while rows go round: each comes back once."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import loop_driver
import pytest
from dying import PATIENCE_SECONDS, await_mark, driver, log_of
from scene import await_executors

import clonos
from clonos import testing

pytestmark = pytest.mark.timeout(800)
FILE_ROWS = 60


def run(folder: Path, hang: tuple[int, str] | None) -> None:
    """Run a driver to its end, or kill it where it hangs."""
    with driver("loop_driver.py", folder, hang=hang) as process:
        if hang is None:
            assert process.wait(PATIENCE_SECONDS) == 0, log_of(folder).read_text()[-3000:]
        else:
            await_mark(folder / f"{hang[1]} {hang[0]}", process)


def test_drivers_killed_between_the_loop_and_spark(tmp_path: Path) -> None:
    for number in range(2):
        rows = range(number * FILE_ROWS, (number + 1) * FILE_ROWS)
        loop_driver.put(tmp_path, f"{number}.json", rows)
    # The loop has the epoch, and Spark has not; then the results have it, and the loop has not.
    run(tmp_path, (0, "loop"))
    assert (tmp_path / "loop" / "epochs" / "0").is_dir()
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    before = sorted((tmp_path / "loop" / "epochs" / "0").iterdir())
    run(tmp_path, (1, "results"))
    assert sorted((tmp_path / "loop" / "epochs" / "0").iterdir()) == before
    run(tmp_path, None)
    tries = loop_driver.check(tmp_path, list(range(2 * FILE_ROWS)))
    assert tries > 3 * FILE_ROWS


class Striker:
    """Kills an executor with its agent, or the Python workers of one, in the middle of a batch."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._thread: threading.Thread | None = None
        self.struck = {"executor": 0, "workers": 0}

    def __call__(self, number: int, step: str) -> None:
        if step == "begun":
            self._thread = threading.Thread(target=self._strike, args=(number,), daemon=True)
            self._thread.start()
        elif step == "loop" and self._thread is not None:
            self._thread.join()

    def _strike(self, number: int) -> None:
        # Into the tries, into what follows them, into the next job.
        time.sleep((0.2, 0.6, 1.2)[number % 3])
        executors = testing.executors(self._spark)
        chosen = executors[number % len(executors)].pid
        if number % 2:
            for worker in testing.python_workers(chosen):
                testing.kill(worker)
                self.struck["workers"] += 1
        else:
            testing.kill(chosen)
            self.struck["executor"] += 1


def test_executors_and_workers_killed_in_the_middle_of_batches(spark: Any, tmp_path: Path) -> None:
    from pyspark import cloudpickle

    # Executors cannot import modules of the tests.
    cloudpickle.register_pickle_by_value(loop_driver)
    for number in range(3):
        rows = range(number * FILE_ROWS, (number + 1) * FILE_ROWS)
        loop_driver.put(tmp_path, f"{number}.json", rows)
    with clonos.attach(spark, checkpoint_dir=str(tmp_path / "clonos")) as session:
        striker = Striker(spark)
        query = loop_driver.start(session, tmp_path, 6, striker)
        query.awaitTermination()
        assert query.exception() is None
    await_executors(spark)
    assert striker.struck["executor"] >= 2
    tries = loop_driver.check(tmp_path, list(range(3 * FILE_ROWS)))
    assert tries > 4 * FILE_ROWS
