"""What an operator several exchanges up has recorded outlives the driver, with a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import chain_driver
import pytest
from dying import PATIENCE_SECONDS, await_mark, driver, log_of
from scene import Record

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    ("stream", "depth"), [(False, 1), (True, 1), (False, 0)], ids=["batch", "stream", "no copies"]
)
def test_a_driver_is_killed_when_a_chain_has_shown_its_rows(
    tmp_path: Path, stream: bool, depth: int
) -> None:
    plan = {"stream": stream, "depth": depth}
    files = chain_driver.FILES if stream else 1
    rows = chain_driver.ROWS // files
    (tmp_path / "in").mkdir()
    for number in range(files):
        lines = [json.dumps({"id": row}) for row in range(number * rows, (number + 1) * rows)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))
    with driver("chain_driver.py", tmp_path, **plan, die=True) as process:
        await_mark(tmp_path / "kill me", process)
    with driver("chain_driver.py", tmp_path, **plan, die=False) as process:
        assert process.wait(PATIENCE_SECONDS) == 0, log_of(tmp_path).read_text()[-3000:]
    seen = [(tmp_path / f"seen-{number}.txt").read_text().splitlines() for number in range(files)]
    assert [len(lines) for lines in seen] == ([1, 2, 1] if stream else [2])
    assert all(len(set(lines)) == 1 for lines in seen), "the same rows, each time"
    record = Record(tmp_path / "calls.txt").read()
    assert not record.twice
    found = {str(row): value for lines in seen for row, value, _ in json.loads(lines[0])}
    assert found == record.first
    assert len(found) == chain_driver.ROWS
