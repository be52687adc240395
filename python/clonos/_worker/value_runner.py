"""``per="value"``: one answer per distinct argument, whatever task asks.

A task takes as many of its open questions as it can answer in about a second, answers them, and
asks again: tasks that have the same questions share the work, and none waits while it has some to
answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from clonos import _core
from clonos._services import Scope, current
from clonos._worker.answers import FLUSH_SECONDS, Answers, Watch
from clonos._worker.kinds import Batches, Columns, Kind, arrow_of
from clonos._worker.result_runner import reset

# Questions that a task takes at most.
TAKEN_MAX = 65_536
# Longer than this, and it takes fewer the next time; much shorter, and it takes more.
TAKEN_SECONDS = 1.0


class ValueRunner:
    """Runs one attempt of a task whose function has one answer per distinct argument.

    Parameters
    ----------
    task : _core.ValueTask
        The opened task.
    kind : Kind
        Calls the function.
    taken_min, taken_max : int
        How many questions are taken at a time. A vectorised function is given all there are.
    """

    def __init__(
        self, task: _core.ValueTask, kind: Kind, taken_min: int, taken_max: int = TAKEN_MAX
    ) -> None:
        self._task = task
        self._kind = kind
        self._answers: Answers | None = None
        self._least = min(taken_min, TAKEN_MAX)
        self._most = max(taken_max, self._least)
        # Few at first: how long a call takes is not known.
        self._taken = self._least

    def run(self, batches: Batches) -> Iterator[pa.Array]:
        """Outputs for each batch."""
        token = current.set(Scope(None))
        watch = Watch(self._tick)
        # A batch whose answers are on their way. The next one is read and asked about meanwhile;
        # whoever takes this one's values may be slow: then the duties lapse, as others would wait.
        before: tuple[Columns, pa.Array] | None = None
        try:
            for columns in batches:
                self._offer(columns)
                if before is not None:
                    if len(columns[0]):
                        self._task.ask_ahead(self._taken)
                    yield self._settled(*before, then=columns)
                values, ahead = self._answered(columns)
                before = (columns, values) if ahead else None
                if not ahead:
                    yield values
            if before is not None:
                yield self._settled(*before)
        finally:
            watch.stop()
            # What was taken and not answered is for others.
            self._task.close()
            self._kind.close()
            reset(token)

    def _offer(self, columns: Columns) -> None:
        if len(columns[0]):
            self._task.offer(arrow_of(columns))

    def _answered(self, columns: Columns) -> tuple[pa.Array, bool]:
        """Values of the batch that was offered, and whether they are yet to be settled."""
        task = self._task
        if not len(columns[0]):
            # For the type of its result.
            return self._kind.run(columns, task.key), False
        while (rows := task.ask(self._taken)) is not None:
            # None, while others are to answer all that is left.
            if len(rows):
                self._answer(columns, rows)
        return task.complete(), not task.is_settled()

    def _settled(self, columns: Columns, values: pa.Array, then: Columns | None = None) -> pa.Array:
        """Values of a batch that may be used; `then` is what was offered after it."""
        task = self._task
        ahead = not task.settle()
        # Others have answered: theirs count. All are answered now, so nobody is waited for.
        while ahead:
            self._offer(columns)
            values, ahead = self._answered(columns)
            ahead = ahead and not task.settle()
            if then is not None:
                self._offer(then)
        return values

    def _tick(self) -> None:
        if (answers := self._answers) is not None:
            answers.save()
        self._task.lapse(FLUSH_SECONDS)

    def _answer(self, columns: Columns, rows: pa.Array) -> None:
        """Answer some rows of a batch."""
        first, count = rows[0].as_py(), len(rows)
        if rows[-1].as_py() - first == count - 1:
            live: Columns = [column.slice(first, count) for column in columns]
        else:
            live = [column.take(rows) for column in columns]
        begun = time.monotonic()
        # What was answered before an exception is kept.
        answers = Answers(lambda places, values: self._task.answer(values, places))
        self._answers = answers
        try:
            values = self._kind.run(live, self._task.key, answers)
        except BaseException:
            answers.rescue()
            raise
        finally:
            self._answers = None
        self._task.answer_ahead(values)
        seconds = time.monotonic() - begun
        if seconds > TAKEN_SECONDS:
            self._taken = max(self._taken // 2, self._least)
        elif seconds < TAKEN_SECONDS / 8 and len(rows) == self._taken:
            self._taken = min(self._taken * 4, self._most)
