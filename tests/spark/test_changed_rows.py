"""Rows that are others when a failed task runs again, as sums of floats are after a shuffle."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.functions import udf

import clonos
from clonos import causal
from clonos.errors import ReplayDivergence

ROWS = 40
# Workers cannot import this module, so its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def job(spark: Any, folder: Path, record: str) -> Any:
    """A column of random numbers over rows that depend on how often a task has failed."""
    import random

    failed, asked = folder / "failed", folder / "asked"

    @udf("double")
    def drifts(row: int) -> float:
        return row + 0.25 * len(lines(failed)) if row % 10 == 3 else float(row)

    def service(row: float) -> float:
        with asked.open("a") as file:
            file.write(f"{row}\n")
        return row + random.random()

    @causal("double", record=record, flush="call")
    def score(row: float) -> float:
        return service(row) if record == "result" else clonos.call(service, row)

    @udf("double")
    def fails_once(row: float) -> float:
        if row >= ROWS - 1 and not lines(failed):
            failed.write_text("once\n")
            raise ConnectionError("a disk has gone")
        return row

    rows = spark.range(0, ROWS, 1, 1).select(drifts.asNondeterministic()("id").alias("row"))
    return rows.select("row", fails_once.asNondeterministic()(score("row")).alias("score"))


@pytest.mark.parametrize("record", ["result", "services"])
def test_nobody_has_seen_what_a_failed_attempt_was_asked(
    spark: Any, tmp_path: Path, record: str
) -> None:
    found = job(spark, tmp_path, record).collect()
    expected = [row + 0.25 if row % 10 == 3 else float(row) for row in range(ROWS)]
    assert [row.row for row in found] == expected
    assert all(0 <= row.score - row.row < 1 for row in found)
    # Only rows that are others were asked for again.
    asked = [float(line) for line in lines(tmp_path / "asked")]
    drifted = [row for row in expected if row % 1]
    assert sorted(asked) == sorted([*map(float, range(ROWS)), *drifted])


@pytest.mark.parametrize("record", ["result", "services"])
def test_what_was_given_out_stays(spark: Any, session: Any, tmp_path: Path, record: str) -> None:
    query = job(spark, tmp_path, record)

    def run_that_fails_later() -> Any:
        found: Any = None
        with contextlib.suppress(KeyError), session.epoch("changed rows"):
            found = query.collect()
            raise KeyError("what comes behind it fails, so the epoch is run again")
        return found

    first = run_that_fails_later()
    assert run_that_fails_later() == first
    # As if the task had failed once more: its rows are others again.
    with (tmp_path / "failed").open("a") as file:
        file.write("twice\n")
    with pytest.raises(Exception) as refused:
        run_that_fails_later()
    assert isinstance(clonos.errors.find(refused.value), ReplayDivergence)
    session.commit("batch", "changed rows")
