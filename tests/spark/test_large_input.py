"""A task of keyed state whose rows do not fit into its memory, on Spark."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor

import clonos

pytest.importorskip("google.protobuf", reason="Spark's own operator needs protobuf")
pytestmark = [pytest.mark.timeout(600), pytest.mark.whole]
cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROWS, KEYS = 2_500_000, 2_000


class Asks(StatefulProcessor):
    """Asks somebody about each key, and dies in the middle the first time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")
        self.handled = 0

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = total = 0
        for row in rows:
            count, total = count + 1, total + row.n
        self.total.update((total,))
        answer = clonos.call(self.ask, key[0])
        self.handled += 1
        if self.handled == KEYS // 2 and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield Row(id=key[0], rows=count, total=total, answer=answer)

    def ask(self, key: str) -> int:
        with (self.folder / "asked").open("a") as asked:
            asked.write(f"{key}\n")
        return int.from_bytes(os.urandom(4))


def test_one_that_dies_between_two_ranges_goes_on_where_it_was(
    spark: Any, session: Any, tmp_path: Path
) -> None:
    rows = spark.range(ROWS).select(
        sf.concat(sf.lit("user-"), sf.col("id") % KEYS).alias("id"),
        sf.col("id").alias("n"),
        sf.concat(sf.lit("a text of some forty letters, and number "), sf.col("id")).alias("text"),
    )
    found = clonos.transform_with_state(
        rows.groupBy("id"),
        Asks(tmp_path),
        "id string, rows long, total long, answer long",
        "append",
        "none",
        partitions=1,
    )
    answers = found.collect()
    assert (tmp_path / "killed").exists()
    assert len({row.id for row in answers}) == len(answers) == KEYS
    assert sum(row.rows for row in answers) == ROWS
    assert sum(row.total for row in answers) == ROWS * (ROWS - 1) // 2
    asked = Counter((tmp_path / "asked").read_text().split())
    # What it had been told by then had left with no row.
    assert len(asked) == KEYS
    assert sum(asked.values()) <= KEYS + KEYS // 2
