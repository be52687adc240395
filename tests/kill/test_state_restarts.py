"""Drivers with keyed state killed with all below them: the next ones go on as if nothing had been.

What the processor draws and is answered is another each time, and what it is asked is written down.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import state_driver
from dying import PATIENCE_SECONDS, await_mark, driver, log_of

from clonos import testing

pytestmark = pytest.mark.timeout(800)
DRIVER = "state_driver.py"
# At each key, so that some fall into the middle of a batch.
PAUSE = 0.05


def run(folder: Path, hang: tuple[int, str] | None, pause: float = 0.0) -> None:
    """Run a driver to its end, or kill it where it hangs."""
    with driver(DRIVER, folder, hang=hang, pause=pause) as process:
        if hang is None:
            assert process.wait(PATIENCE_SECONDS) == 0, log_of(folder).read_text()[-3000:]
        else:
            await_mark(folder / f"{hang[1]} {hang[0]}", process)


def test_a_driver_killed_between_the_sink_and_the_commit(tmp_path: Path) -> None:
    for batch in range(3):
        state_driver.put(tmp_path, batch)
    run(tmp_path, (1, "written"))
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    run(tmp_path, None)
    state_driver.check(tmp_path, 3)
    questions = [what for what, _ in state_driver.asked(tmp_path)]
    assert len(set(questions)) == len(questions)


def test_drivers_killed_wherever_they_are(tmp_path: Path) -> None:
    batches = 5
    for batch in range(batches):
        state_driver.put(tmp_path, batch)
    dice = random.Random()
    wanted = sorted(
        dice.sample(range(10, batches * state_driver.KEYS * state_driver.ROWS_PER_KEY), 3)
    )
    pauses = [dice.random() for _ in wanted]
    settled = []
    for count, pause in zip(wanted, pauses, strict=True):
        # Anywhere in the processors of a batch, or shortly behind them.
        with driver(DRIVER, tmp_path, hang=None, pause=PAUSE) as process:

            def is_there(count: int = count, process: Any = process) -> bool:
                return len(state_driver.asked(tmp_path)) >= count or process.poll() is not None

            testing.wait_until(is_there, f"{count} calls", PATIENCE_SECONDS, interval=0.02)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pause)
        known = [
            what
            for key, *_, batch in state_driver.written(tmp_path)
            for what in state_driver.of_batch(key, batch)
        ]
        settled.append((len(state_driver.asked(tmp_path)), known))
    run(tmp_path, None, PAUSE)
    state_driver.check(tmp_path, batches)
    for count, known in settled:
        # Of what has led to output, nobody is asked again.
        again = [what for what, _ in state_driver.asked(tmp_path)[count:]]
        assert not set(again) & set(known), (wanted, pauses)
