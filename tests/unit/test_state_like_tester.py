"""Random processors do the same here as on PySpark's own tester, which needs no JVM."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyed import Operator
from pyspark.sql import Row

from random_processors import DUMP, WITHOUT_TIME, Interpreter, Step, batches, by_key, steps

tester = pytest.importorskip("pyspark.sql.streaming.tws_tester")


FIRST_MS, BETWEEN_MS = 1_000, 700


class Ends:
    """When what a state of the tester's has ends, which knows no TTL itself."""

    handle: Any
    state: Any
    ttl: int | None = None

    def end(self) -> float:
        return self.handle.now + self.ttl if self.ttl else math.inf

    def lasts(self, end: float) -> bool:
        # As Spark's, which says that it is over when that time has come.
        return end > self.handle.now

    def of_key(self) -> Any:
        return self.state.get(self.handle.grouping_key)


class EndingValue(Ends, tester._InMemoryValueState):  # type: ignore[misc,name-defined]
    def update(self, newValue: Any) -> None:
        super().update((newValue, self.end()))

    def _get_value(self) -> Any:
        found = self.of_key()
        return found[0] if found is not None and self.lasts(found[1]) else None


class EndingList(Ends, tester._InMemoryListState):  # type: ignore[misc,name-defined]
    def put(self, newState: Any) -> None:
        super().put([(element, self.end()) for element in newState])

    def appendValue(self, newState: Any) -> None:
        super().appendValue((newState, self.end()))

    def appendList(self, newState: Any) -> None:
        super().appendList([(element, self.end()) for element in newState])

    def _get_list(self) -> Any:
        return [one for one, end in self.of_key() or () if self.lasts(end)] or None


class EndingMap(Ends, tester._InMemoryMapState):  # type: ignore[misc,name-defined]
    def updateValue(self, key: Any, value: Any) -> None:
        super().updateValue(key, (value, self.end()))

    def _get_map(self) -> Any:
        pairs = (self.of_key() or {}).items()
        return {key: value for key, (value, end) in pairs if self.lasts(end)} or None

    def removeKey(self, key: Any) -> None:
        (self.of_key() or {}).pop(key, None)


class EndingHandle(tester._InMemoryStatefulProcessorHandle):  # type: ignore[misc,name-defined]
    """The tester's handle, with a TTL."""

    now = FIRST_MS

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: Any = None) -> Any:
        return self._made(EndingValue, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: Any = None) -> Any:
        return self._made(EndingList, ttlDurationMs)

    def getMapState(self, stateName: str, key: Any, value: Any, ttlDurationMs: Any = None) -> Any:
        return self._made(EndingMap, ttlDurationMs)

    def _made(self, kind: Any, ttl: int | None) -> Any:
        state = kind(self)
        state.ttl = ttl
        return state


def _by_key(rows: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = defaultdict(list)
    for key, n in rows:
        grouped[key].append(n)
    return grouped


class Theirs:
    """PySpark's tester, used as its operator runs a batch: rows of all keys, then timers."""

    def __init__(
        self, processor: Interpreter, mode: str, initial: Sequence[tuple[str, int]] = ()
    ) -> None:
        self._pandas = processor.pandas
        frames = {key: pd.DataFrame({"m": ms}) for key, ms in _by_key(initial).items()}
        kept: dict[str, Any] = {"initialStateRow": [(key, Row(m=m)) for key, m in initial]}
        if processor.pandas:
            kept = {"initialStatePandas": list(frames.items())}
        with patch.object(tester, "_InMemoryStatefulProcessorHandle", EndingHandle):
            self._tester = tester.TwsTester(processor, timeMode=mode, **kept)

    def batch(self, rows: list[tuple[str, int]], now: int) -> dict[str, list[str]]:
        self._tester._currentProcessingTimeMs = self._tester.handle.now = now
        found: list[Any] = []
        for key, numbers in _by_key(rows).items():
            if self._pandas:
                frame = pd.DataFrame({"id": [key] * len(numbers), "n": numbers})
                found += self._tester.testInPandas(key, frame).to_dict("records")
            else:
                found += self._tester.test(key, [Row(id=key, n=n) for n in numbers])
        timers = self._tester._handleExpiredTimers()
        found += timers.to_dict("records") if isinstance(timers, pd.DataFrame) else timers
        return by_key(found)


@given(
    program=steps,
    on_timer=steps,
    batches=batches,
    mode=st.sampled_from(["None", "ProcessingTime"]),
    how=st.tuples(st.booleans(), st.sampled_from([None, 0, 40]), st.sampled_from([0, 1 << 20])),
)
def test_a_random_processor_does_what_it_does_on_pysparks_tester(
    program: list[Step],
    on_timer: list[Step],
    batches: Any,
    mode: str,
    how: tuple[bool, int | None, int],
) -> None:
    pandas, part_bytes, rows_bytes = how
    processor = Interpreter([*program, ("times", 0)], on_timer, pandas=pandas)
    theirs = Theirs(Interpreter(processor.program, on_timer, pandas=pandas), mode)
    flavour: Any = "pandas" if pandas else "row"
    schema, output = "id string, n long", "id string, what string"
    ours = Operator(processor, schema, output, time_mode=mode, flavour=flavour)
    ours.part_bytes, ours.rows_bytes = part_bytes, rows_bytes
    for number, rows in enumerate(batches):
        now = FIRST_MS + number * BETWEEN_MS
        assert by_key(ours.batch(rows, now=now)) == theirs.batch(rows, now)
    # All that is left.
    last = [(key, 0) for key in ("a", "b", "c", "")]
    for processor_now in (ours, theirs):
        set_program(processor_now, DUMP)
    assert by_key(ours.batch(last, now=10_000)) == theirs.batch(last, 10_000)


def lasting(least: int) -> Any:
    # Some end right when a batch begins.
    return st.sampled_from([None, least, BETWEEN_MS, 2 * BETWEEN_MS, 10 * BETWEEN_MS])


@given(
    programs=st.tuples(
        steps,
        steps,
        st.lists(st.tuples(st.sampled_from(WITHOUT_TIME), st.integers(0, 3)), max_size=5),
    ),
    initial=batches.map(lambda found: found[0]),
    batches=batches,
    ttls=st.tuples(lasting(1), lasting(100), lasting(800)),
    how=st.tuples(st.booleans(), st.sampled_from([None, 0, 40]), st.sampled_from([0, 1 << 20])),
)
def test_so_it_does_where_state_is_there_at_first_and_ends_with_its_ttl(
    programs: tuple[list[Step], list[Step], list[Step]],
    initial: list[tuple[str, int]],
    batches: Any,
    ttls: Any,
    how: tuple[bool, int | None, int],
) -> None:
    program, on_timer, at_first = programs
    pandas, part_bytes, rows_bytes = how
    sides = [Interpreter(program, on_timer, pandas=pandas) for _ in range(2)]
    for processor in sides:
        processor.at_first, processor.ttls = at_first, ttls
    theirs = Theirs(sides[0], "ProcessingTime", initial)
    flavour: Any = "pandas" if pandas else "row"
    ours = Operator(
        *(sides[1], "id string, n long", "id string, what string"),
        time_mode="ProcessingTime",
        flavour=flavour,
        initial="id string, m long",
    )
    ours.part_bytes, ours.rows_bytes = part_bytes, rows_bytes
    for number, rows in enumerate(batches):
        now = FIRST_MS + number * BETWEEN_MS
        found = ours.batch(rows, now=now, initial=initial if number == 0 else ())
        assert by_key(found) == theirs.batch(rows, now)
    last = [(key, 0) for key in ("a", "b", "c", "")]
    for processor_now in (ours, theirs):
        set_program(processor_now, DUMP)
    now = FIRST_MS + len(batches) * BETWEEN_MS
    assert by_key(ours.batch(last, now=now)) == theirs.batch(last, now)


def set_program(side: Any, program: list[Step]) -> None:
    if isinstance(side, Theirs):
        side._tester.processor.program = program
    else:
        side.change(lambda processor: setattr(processor, "program", program))
