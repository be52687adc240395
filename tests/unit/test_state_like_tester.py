"""Random processors do the same here as on PySpark's own tester, which needs no JVM."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyed import Operator
from pyspark.sql import Row

from random_processors import DUMP, Interpreter, Step, batches, by_key, steps

tester = pytest.importorskip("pyspark.sql.streaming.tws_tester")


class Theirs:
    """PySpark's tester, used as its operator runs a batch: rows of all keys, then timers."""

    def __init__(self, processor: Interpreter, mode: str) -> None:
        self._pandas = processor.pandas
        self._tester = tester.TwsTester(processor, timeMode=mode)

    def batch(self, rows: list[tuple[str, int]], now: int) -> dict[str, list[str]]:
        self._tester._currentProcessingTimeMs = now
        grouped: dict[str, list[int]] = defaultdict(list)
        for key, n in rows:
            grouped[key].append(n)
        found: list[Any] = []
        for key, numbers in grouped.items():
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
        now = 1_000 + number * 700
        assert by_key(ours.batch(rows, now=now)) == theirs.batch(rows, now)
    # All that is left.
    last = [(key, 0) for key in ("a", "b", "c", "")]
    for processor_now in (ours, theirs):
        set_program(processor_now, DUMP)
    assert by_key(ours.batch(last, now=10_000)) == theirs.batch(last, 10_000)


def set_program(side: Any, program: list[Step]) -> None:
    if isinstance(side, Theirs):
        side._tester.processor.program = program
    else:
        side.change(lambda processor: setattr(processor, "program", program))
