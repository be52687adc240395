"""Input of which not all rows are in memory at a time is handled as if they were."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from keyed import Operator
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from clonos import _core
from clonos.errors import ResourceExhausted
from local_agent import make_config

SCHEMA, OUTPUT = "id string, n long", "id string, what string"


class Sums(StatefulProcessor):
    """Says what it was given, what it knew, and which timers fire."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sum = handle.getValueState("sum", "total long")
        self.seen = handle.getListState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.sum.get()
        numbers = [row.n for row in rows]
        self.sum.update(((before[0] if before else 0) + sum(numbers),))
        self.seen.appendList([(n,) for n in numbers])
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 10 + numbers[0] % 7)
        timers = list(self.handle.listTimers())
        yield Row(id=key[0], what=f"{before} {numbers} {len(list(self.seen.get()))} {timers}")

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(id=key[0], what=f"{expiry} {self.sum.get()}")


def test_what_comes_of_it_is_the_same_to_the_last_row() -> None:
    dice = random.Random(7)
    whole, ranged = (Operator(Sums(), SCHEMA, OUTPUT, time_mode="ProcessingTime") for _ in range(2))
    ranged.rows_bytes = 0
    for number in range(4):
        rows = [(f"key {dice.randrange(300)}", dice.randrange(1000)) for _ in range(2_000)]
        now = 1_000 + 12 * number
        assert whole.batch(rows, now=now) == ranged.batch(rows, now=now)


def test_an_initial_state_is_read_by_range_too() -> None:
    class Started(Sums):
        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            self.sum.update((initialState.total,))

    initial = [(f"key {n}", n) for n in range(200)]
    found = []
    for rows_bytes in (0, 1 << 30):
        operator = Operator(
            Started(), SCHEMA, OUTPUT, time_mode="ProcessingTime", initial="id string, total long"
        )
        operator.rows_bytes = rows_bytes
        rows = [(f"key {n % 150}", n) for n in range(600)]
        found.append([operator.batch(rows, initial=initial), operator.batch(rows)])
    assert found[0] == found[1]


def opened(partition: int = 0, partitions: int = 1) -> _core.StateTask:
    return _core.StateTask.open(
        None,
        query="q",
        operator="op",
        epoch="named",
        partition=partition,
        partitions=partitions,
        keys=pa.schema({"k": pa.string()}),
        variables=[],
    )


def test_rows_wait_in_the_folder_for_spilled_logs_which_may_be_full(tmp_path: Path) -> None:
    config = make_config(tmp_path, spill_dir=str(tmp_path / "spill"))
    rows = opened().gathering([0], 1_000, config)
    assert not (tmp_path / "spill").exists()
    # What is compressed takes less than all of it.
    texts = [random.Random(n).randbytes(500).hex() for n in range(1_000)]
    for first in range(0, 100_000, 1_000):
        keys = [str(first + n) for n in range(1_000)]
        rows.add(pa.record_batch({"k": keys, "text": texts}))
    assert (tmp_path / "spill").is_dir()
    assert not list((tmp_path / "spill").iterdir()), "nobody else can open it"
    counts = []
    while some := rows.take():
        counts.append(sum(len(batch) for batch in some))
    assert (sum(counts), len(counts)) == (100_000, 128)


def test_a_budget_that_is_used_up_is_told(tmp_path: Path) -> None:
    config = make_config(tmp_path, disk_bytes=1 << 20)
    rows = opened().gathering([0], 1_000, config)
    texts = [random.Random(n).randbytes(5_000).hex() for n in range(1_000)]
    batch = pa.record_batch({"k": [str(n) for n in range(1_000)], "text": texts})

    def fill() -> None:
        for _ in range(100):
            rows.add(batch)

    with pytest.raises(ResourceExhausted, match="disk"):
        fill()


def test_many_rows_take_little_memory() -> None:
    script = Path(__file__).with_name("state_rows.py")

    def grown(rows_bytes: int) -> int:
        command = [sys.executable, str(script), "1500000", str(rows_bytes)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(done.stdout.split()[1])

    assert grown(8 << 20) * 2 < grown(1 << 40)
