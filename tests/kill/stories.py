"""What is told of killed drivers, wherever their logs are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dying import PATIENCE_SECONDS, await_mark, driver
from scene import ROWS, Record

FILES = 3
FILE_ROWS = 100
# Fewer executors, other partitions: rows are found by fingerprint, in whichever log they are.
FIRST = {"master": "local-cluster[3,1,1024]", "partitions": 6, "die": True}
SECOND = {"master": "local-cluster[2,1,1024]", "partitions": 4, "die": False}


def run(folder: Path, **plan: Any) -> None:
    """Run a driver; kill it when it says so, if it is to die."""
    with driver("driver.py", folder, **plan) as process:
        await_mark(folder / ("kill me" if plan["die"] else "done"), process)
        if not plan["die"]:
            process.wait(PATIENCE_SECONDS)


def killed_batch_job(folder: Path, **settings: Any) -> Record:
    """Run a job of which the driver dies when all rows are answered; what was answered."""
    run(folder, kind="batch", **FIRST, **settings)
    record = Record(folder / "calls.txt").read()
    assert len(record.calls) == ROWS
    return record


def the_same_job_goes_on(folder: Path, record: Record, **settings: Any) -> None:
    """Run it again: every row is there once, with the first answer that was given for it."""
    run(folder, kind="batch", **SECOND, **settings)
    rows = json.loads((folder / "rows.json").read_text())
    assert sorted(row for row, _ in rows) == list(range(ROWS))
    assert all(value == record.first[str(row)] for row, value in rows)
    assert not record.read().twice


def killed_stream_goes_on(folder: Path, **settings: Any) -> None:
    """Run a stream of which the driver dies in batch 1, and again."""
    (folder / "in").mkdir()
    for number in range(FILES):
        rows = range(number * FILE_ROWS, (number + 1) * FILE_ROWS)
        text = "\n".join(json.dumps({"id": row}) for row in rows)
        (folder / "in" / f"{number}.json").write_text(text)
    plan: dict[str, Any] = {"kind": "stream", "master": "local-cluster[2,1,1024]", "partitions": 0}
    for die in (True, False):
        run(folder, die=die, **plan, **settings)
    record = Record(folder / "calls.txt").read()
    seen = [(folder / f"batch-{number}.txt").read_text().splitlines() for number in range(FILES)]
    assert [len(lines) for lines in seen] == [1, 2, 1], "batch 1 came twice"
    # The same rows, and the same time that the batch function took on the driver.
    assert seen[1][0] == seen[1][1]
    values = dict(pair for lines in seen for pair in json.loads(lines[0])[1])
    assert {str(row): value for row, value in values.items()} == record.first
    assert not record.twice
