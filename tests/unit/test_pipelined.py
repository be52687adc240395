"""No output leaves before what led to it is stable, also where outputs record nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clonos._worker.result_runner import ResultRunner
from clonos._worker.service_runner import ServiceRunner


class SlowTask:
    """A task whose blocks become stable only when they are waited for."""

    def __init__(self) -> None:
        self.recorded = 0
        self.sent = 0
        self.stable = 0
        self._marks = [0]

    def record(self) -> int:
        self.recorded += 1
        return self.recorded

    def publish(self) -> int:
        if self.recorded > self.sent:
            self.sent = self.recorded
            self._marks.append(self.sent)
        return len(self._marks) - 1

    publish_answers = publish

    def settle(self, mark: int | None = None) -> None:
        self.stable = max(self.stable, self._marks[-1 if mark is None else mark])

    def idempotency_key(self) -> str:
        return ""

    def finish(self) -> None:
        assert self.stable == self.recorded

    def close(self) -> None:
        pass


# One letter per output: whether it recorded something.
OUTPUTS = ["rr", "rn", "rnn", "nr", "rnrnn", "nnr", "n", ""]


@pytest.mark.parametrize("flush", ["auto", "batch"])
@pytest.mark.parametrize(
    "runner", [ServiceRunner, lambda task, flush: ResultRunner(task, 1, None, flush)]
)
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_an_output_leaves_when_all_before_it_is_stable(
    runner: Any, outputs: str, flush: str
) -> None:
    task: Any = SlowTask()

    def made() -> Iterator[int]:
        for letter in outputs:
            yield task.record() if letter == "r" else task.recorded

    left = 0
    for needs in runner(task, flush).pipelined(made()):
        assert task.stable >= needs
        left += 1
    assert left == len(outputs)
    assert task.stable == task.recorded
