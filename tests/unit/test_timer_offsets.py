"""When the offset of the source of timers moves, without Spark and agents."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from clonos._sources.timer_offsets import (
    FIRST_PAUSE_SECONDS,
    LAST_PAUSE_SECONDS,
    DueTimer,
    Offset,
    Pauses,
    first_offset,
    has_timers,
    reader_of,
)
from clonos._sources.timer_offsets import next_offset as next_of_reader
from clonos._sources.timers import TimersReader
from clonos.errors import ClonosError


def next_offset(start: Offset, timer: DueTimer | None) -> Offset:
    """Of a reader that has just begun."""
    return next_of_reader(start, timer, Pauses(), 0.0)


def logged(offset: Offset) -> Offset:
    """An offset as Spark's log has it."""
    again: Offset = json.loads(json.dumps(offset))
    return again


def test_nothing_moves_while_nothing_is_due() -> None:
    start = first_offset("r")
    assert next_offset(start, None) == start
    assert not has_timers(start, next_offset(start, None))


def test_all_timers_that_are_due_are_one_batch() -> None:
    start = first_offset("r")
    end = next_offset(start, DueTimer(10, 3))
    assert has_timers(start, end)
    assert reader_of(end) == "r"
    # They have fired; the next one is due later.
    assert next_offset(logged(end), None) == end


def test_each_batch_of_timers_is_another_offset() -> None:
    offset = first_offset("r")
    seen = [offset]
    for version, due in enumerate((10, 10, 7, 30)):
        offset = next_offset(logged(offset), DueTimer(due, version))
        assert has_timers(seen[-1], offset)
        assert offset not in seen
        seen.append(offset)


def test_a_batch_that_nobody_asked_for_is_not_begun_over_and_over() -> None:
    end = next_offset(first_offset("r"), DueTimer(10, 3))
    assert next_offset(logged(end), DueTimer(10, 3)) == end
    # Somebody has run the operator since, or an earlier timer was registered.
    assert has_timers(end, next_offset(end, DueTimer(10, 4)))
    assert has_timers(end, next_offset(end, DueTimer(9, 3)))


def test_what_is_still_due_is_begun_again_after_ever_longer_pauses() -> None:
    pauses, timer = Pauses(), DueTimer(10, 3)
    offset = next_of_reader(first_offset("r"), timer, pauses, 0.0)
    begun = []
    for tenths in range(3_000):
        found = next_of_reader(logged(offset), timer, pauses, tenths / 10)
        if has_timers(offset, found):
            begun.append(tenths / 10)
            offset = found
    waited = [later - earlier for earlier, later in itertools.pairwise([0.0, *begun])]
    assert waited[0] == FIRST_PAUSE_SECONDS
    assert all(
        later == min(2 * earlier, LAST_PAUSE_SECONDS)
        for earlier, later in itertools.pairwise(waited)
    )
    assert waited[-1] == LAST_PAUSE_SECONDS
    # Another one does not wait for that.
    assert has_timers(offset, next_of_reader(offset, DueTimer(9, 3), pauses, 300.0))


def test_when_the_session_was_stopped_nothing_is_due(tmp_path: Path) -> None:
    reader = TimersReader(str(tmp_path / "session"), "f", by_watermark=False)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    # One that is there, and cannot be read, is no such case.
    (tmp_path / "session").write_bytes(b"?")
    with pytest.raises(ClonosError):
        reader.latestOffset(start, ReadAllAvailable())


def test_a_batch_that_runs_again_is_one_for_timers_if_it_was() -> None:
    first = first_offset("r")
    end = logged(next_offset(first, DueTimer(10, None)))
    assert has_timers(logged(first), end)
    # Of the first batch the log has no start, and another reader makes one.
    assert not has_timers(first_offset("another"), logged(first))
