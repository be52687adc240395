"""The clock in a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import clonos
from clonos import _services
from clonos._services import Scope


class At:
    """A recorded clock."""

    def time_ns(self) -> int:
        return 1_700_000_000_123_456_789


def test_now_is_the_recorded_clock_in_any_zone() -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    token = _services.current.set(Scope(At()))  # type: ignore[arg-type]
    try:
        there, utc = clonos.now(zone), clonos.now()
    finally:
        _services.current.reset(token)
    assert there == utc == datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC)
    assert (there.utcoffset(), utc.tzinfo) == (timedelta(hours=5, minutes=30), UTC)


def test_outside_a_task_it_is_the_plain_one() -> None:
    before = datetime.now(UTC)
    assert before <= clonos.now() + timedelta(microseconds=1) <= before + timedelta(minutes=1)
