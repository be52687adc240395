"""The driver and everything below it killed, then resumed by another from the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dying import await_mark, driver
from scene import ROWS, Record

pytestmark = pytest.mark.timeout(240)
FILES = 3
FILE_ROWS = 100


def run(folder: Path, **plan: Any) -> None:
    """Run a driver; kill it when it says so, if it is to die."""
    with driver("driver.py", folder, **plan) as process:
        await_mark(folder / ("kill me" if plan["die"] else "done"), process)


def test_a_batch_job_goes_on_where_it_was_with_fewer_executors(tmp_path: Path) -> None:
    run(tmp_path, kind="batch", master="local-cluster[3,1,1024]", partitions=6, die=True)
    record = Record(tmp_path / "calls.txt").read()
    assert len(record.calls) == ROWS
    # Fewer executors, other partitions: rows are found by fingerprint, in whichever log they are.
    run(tmp_path, kind="batch", master="local-cluster[2,1,1024]", partitions=4, die=False)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert sorted(row for row, _ in rows) == list(range(ROWS))
    assert all(value == record.first[str(row)] for row, value in rows)
    assert not record.read().twice


def test_a_stream_killed_in_a_batch_gives_it_again_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        rows = range(number * FILE_ROWS, (number + 1) * FILE_ROWS)
        text = "\n".join(json.dumps({"id": row}) for row in rows)
        (tmp_path / "in" / f"{number}.json").write_text(text)
    run(tmp_path, kind="stream", master="local-cluster[2,1,1024]", partitions=0, die=True)
    run(tmp_path, kind="stream", master="local-cluster[2,1,1024]", partitions=0, die=False)
    record = Record(tmp_path / "calls.txt").read()
    seen = {
        number: (tmp_path / f"batch-{number}.txt").read_text().splitlines()
        for number in range(FILES)
    }
    assert [len(seen[number]) for number in range(FILES)] == [1, 2, 1], "batch 1 came twice"
    # The same rows, and the same time that the batch function took on the driver.
    assert seen[1][0] == seen[1][1]
    values = dict(pair for lines in seen.values() for pair in json.loads(lines[0])[1])
    assert {str(row): value for row, value in values.items()} == record.first
    assert not record.twice
