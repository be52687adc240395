"""Eight million recorded texts, and a restart that cuts the rows into other partitions."""

from __future__ import annotations

import json
from pathlib import Path

import dying
import pyarrow.parquet as pq
import pytest

ROWS = 8_000_000
MEMORY_MIB = 64
# What an agent's process takes besides: 60 where nothing else runs, and up to 92 was seen on a
# machine with eight times the work that it can do.
BESIDES_MIB = 128


@pytest.mark.timeout(600)
def test_eight_million_texts_come_again_in_other_partitions(tmp_path: Path) -> None:
    texts = []
    for to, partitions in (("first", 4), ("again", 3)):
        plan = {"rows": ROWS, "partitions": partitions, "memory": f"{MEMORY_MIB}MiB", "to": to}
        with dying.driver("large_driver.py", tmp_path, **plan) as process:
            dying.await_mark(tmp_path / f"{to} done", process)
        peaks = json.loads((tmp_path / f"{to} peaks").read_text())
        assert len(peaks) == 2
        assert max(peaks) <= (MEMORY_MIB + BESIDES_MIB) << 20, peaks
        texts.append(pq.read_table(tmp_path / to).sort_by("id"))
    assert texts[0].num_rows == ROWS
    assert texts[0].equals(texts[1])
