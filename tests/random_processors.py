"""Random programs for stateful processors, to be run on two sides that should agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

# What a step of a random program does with a number; what it returns is output.
Step = tuple[str, int]


class Interpreter(StatefulProcessor):
    """Runs a random program for each row, and another for each timer."""

    #: How long values, elements and pairs last, in milliseconds; None is for ever.
    ttls: tuple[int | None, int | None, int | None] = (None, None, None)
    #: What it does with each row of an initial state, and gives no output of.
    at_first: Sequence[Step] = ()

    def __init__(self, program: list[Step], on_timer: list[Step], *, pandas: bool) -> None:
        self.program, self.on_timer, self.pandas = program, on_timer, pandas

    def init(self, handle: Any) -> None:
        self.handle = handle
        value, many, by_key = self.ttls
        self.value = handle.getValueState("value", "n long, s string", value)
        self.many = handle.getListState("many", "n long", many)
        self.by_key = handle.getMapState("by_key", "k long", "n long, s string", by_key)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        numbers = initialState["m"].tolist() if self.pandas else [initialState.m]
        for n in numbers:
            list(self._steps(self.at_first, n, timerValues))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        outputs = []
        for chunk in rows:
            numbers = chunk["n"].tolist() if self.pandas else [chunk.n]
            for n in numbers:
                outputs += self._steps(self.program, n, timerValues)
        yield from self._given(key, outputs)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        outputs = [f"timer {expiry}", *self._steps(self.on_timer, expiry, timerValues)]
        yield from self._given(key, outputs)

    def _given(self, key: Any, outputs: list[str]) -> Iterator[Any]:
        if self.pandas:
            # Of no rows it would be of numbers, which Spark does not take for texts.
            frame = {"id": [key[0]] * len(outputs), "what": outputs}
            yield pd.DataFrame(frame, dtype=object)
        else:
            yield from (Row(id=key[0], what=output) for output in outputs)

    def _steps(self, steps: Sequence[Step], n: int, times: Any) -> Iterator[str]:
        for name, at in steps:
            found = getattr(self, f"do_{name}")(n, at, times)
            if found is not None:
                yield f"{name} {found}"

    def do_update(self, n: int, at: int, _times: Any) -> None:
        before = self.value.get()
        self.value.update(((before[0] if before else 0) + n + at, f"s{at}" if at else None))

    def do_get(self, _n: int, _at: int, _times: Any) -> str:
        return f"{self.value.get()} {self.value.exists()}"

    def do_clear(self, n: int, at: int, _times: Any) -> None:
        if n % 2 == at % 2:
            self.value.clear()

    def do_append(self, n: int, _at: int, _times: Any) -> None:
        self.many.appendValue((n,))

    def do_append_all(self, n: int, at: int, _times: Any) -> None:
        self.many.appendList([(n + i,) for i in range(at + 1)])

    def do_put(self, n: int, at: int, _times: Any) -> None:
        if n % 3 == at % 3:
            self.many.put([(n,), (at,)])

    def do_empty(self, n: int, at: int, _times: Any) -> None:
        if n % 3 == at % 3:
            self.many.clear()

    def do_list(self, _n: int, _at: int, _times: Any) -> str:
        return f"{list(self.many.get())} {self.many.exists()}"

    def do_put_pair(self, n: int, at: int, _times: Any) -> None:
        self.by_key.updateValue(((n + at) % 4,), (n, None))

    def do_remove(self, n: int, at: int, _times: Any) -> None:
        self.by_key.removeKey(((n + at) % 4,))

    def do_forget(self, n: int, at: int, _times: Any) -> None:
        if n % 3 == at % 3:
            self.by_key.clear()

    def do_pair(self, n: int, at: int, _times: Any) -> str:
        user = ((n + at) % 4,)
        found = self.by_key.getValue(user)
        return f"{found and tuple(found)} {self.by_key.containsKey(user)}"

    def do_pairs(self, _n: int, _at: int, _times: Any) -> str:
        pairs = sorted(self.by_key.iterator())
        assert [user for user, _ in pairs] == sorted(self.by_key.keys())
        assert len(pairs) == len(list(self.by_key.values()))
        return str(pairs)

    def do_register(self, n: int, at: int, times: Any) -> None:
        if self._has_timers(times):
            self.handle.registerTimer(self._now(times) + (n % 3) * 500 + at)

    def do_unregister(self, n: int, at: int, times: Any) -> None:
        if self._has_timers(times):
            self.handle.deleteTimer(self._now(times) + (n % 3) * 500 + at)

    def do_timers(self, _n: int, _at: int, times: Any) -> str | None:
        return str(list(self.handle.listTimers())) if self._has_timers(times) else None

    def do_times(self, _n: int, _at: int, times: Any) -> str:
        return f"{times.getCurrentProcessingTimeInMs()} {times.getCurrentWatermarkInMs()}"

    @staticmethod
    def _now(times: Any) -> int:
        return max(times.getCurrentProcessingTimeInMs(), 0)

    @staticmethod
    def _has_timers(times: Any) -> bool:
        return times.getCurrentProcessingTimeInMs() >= 0


NAMES = [name.removeprefix("do_") for name in dir(Interpreter) if name.startswith("do_")]
# The tester has none when it is given an initial state.
WITHOUT_TIME = [name for name in NAMES if name not in ("register", "unregister", "timers", "times")]
DUMP: list[Step] = [("get", 0), ("list", 0), ("pairs", 0), ("timers", 0)]
steps = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3)), max_size=6)
batches = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", ""]), st.integers(-5, 5)), max_size=8),
    min_size=1,
    max_size=5,
)


def by_key(rows: list[Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        found[row["id"]].append(row["what"])
    return dict(found)
