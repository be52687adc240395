"""The driver and everything below it killed, then resumed by another from the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import stories

pytestmark = pytest.mark.timeout(480)


def test_a_batch_job_goes_on_where_it_was_with_fewer_executors(tmp_path: Path) -> None:
    record = stories.killed_batch_job(tmp_path)
    stories.the_same_job_goes_on(tmp_path, record)


def test_a_stream_killed_in_a_batch_gives_it_again_as_it_was(tmp_path: Path) -> None:
    stories.killed_stream_goes_on(tmp_path)
