"""Random processors on streams do what they do on Spark's own operator, over RocksDB."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from shown import OUTPUT, PROVIDER, ROCKS_DB, Folder, at
from versions import since_42

import clonos
import random_processors
from random_processors import DUMP, Interpreter, Step, steps

pytest.importorskip("google.protobuf", reason="Spark's own operator needs protobuf")
# An example costs seconds, so each is many programs.
pytestmark = [pytest.mark.timeout(600), pytest.mark.whole]
for module in (sys.modules[__name__], random_processors):
    cloudpickle.register_pickle_by_value(module)

PROGRAMS = 12
KEYS = "abc"


class Programs(Interpreter):
    """Runs for each key the program whose number it begins with, and shows its state after each."""

    def __init__(self, programs: list[tuple[list[Step], list[Step]]], *, pandas: bool) -> None:
        super().__init__([], [], pandas=pandas)
        self.programs = [([*program, *DUMP], [*on_timer, *DUMP]) for program, on_timer in programs]

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.program, _ = self._of(key)
        yield from super().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        _, self.on_timer = self._of(key)
        yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)

    def _of(self, key: Any) -> tuple[list[Step], list[Step]]:
        return self.programs[int(key[0][:2])]

    def do_timers(self, _n: int, _at: int, times: Any) -> str | None:
        # Spark gives them in no order.
        return str(sorted(self.handle.listTimers())) if self._has_timers(times) else None

    def do_times(self, _n: int, _at: int, times: Any) -> str:
        # The other is the batch's, and each stream has its own.
        return str(times.getCurrentWatermarkInMs())

    @staticmethod
    def _now(times: Any) -> int:
        # For what is due at once ours begins a batch, where Spark's waits for the next there is.
        return max(times.getCurrentWatermarkInMs(), 0) + 1


# Of each batch its second, and of each of its rows the program and key, number and distance to it.
BATCHES = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.lists(
            st.tuples(
                *(st.integers(0, PROGRAMS - 1), st.sampled_from(KEYS), st.integers(-5, 5)),
                st.integers(-20, 0),
            ),
            min_size=20,
            max_size=60,
        ),
    ),
    min_size=3,
    max_size=5,
)


def run(df: Any, checkpoint: Path) -> list[dict[str, list[str]]]:
    """Run a stream over what there is; of each batch that has any, the output by key."""
    found: dict[int, dict[str, list[str]]] = {}

    def keep(batch: Any, number: int) -> None:
        found[number] = random_processors.by_key(batch.collect())

    writer = df.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return [output for _, output in sorted(found.items()) if output]


# Timers have batches of their own since Spark 4.2 alone.
@pytest.mark.parametrize("mode", ["None", pytest.param("EventTime", marks=since_42)])
@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "frames"])
@given(
    story=st.tuples(
        st.lists(st.tuples(steps, steps), min_size=PROGRAMS, max_size=PROGRAMS), BATCHES
    )
)
@settings(
    max_examples=2,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_random_processors_do_what_they_do_on_sparks_operator(
    spark: Any, session: Any, mode: str, pandas: bool, story: Any
) -> None:
    spark.conf.set(PROVIDER, ROCKS_DB)
    programs, batches = story
    processor = Programs(programs, pandas=pandas)
    with tempfile.TemporaryDirectory() as made:
        folder = Folder(Path(made))
        for number, (second, rows) in enumerate(batches):
            now = number * 4 + second
            folder.put(
                *(
                    {"id": f"{program:02}{key}", "n": n, "at": at(now + before / 10)}
                    for program, key, n, before in rows
                )
            )
        grouped = folder.read(spark).withWatermark("at", "1 seconds").groupBy("id")
        theirs = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
        expected = run(theirs(processor, OUTPUT, "Update", mode), Path(made, "theirs"))
        found = run(
            clonos.transform_with_state(
                *(grouped, processor, OUTPUT, "Update", mode),
                uid="random",
                flavour="pandas" if pandas else "row",
            ),
            Path(made, "ours"),
        )
    assert found == expected
    assert found
