"""What became of a run, judged by the service's own record of what it answered."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from clonos.cli.demo.server import Answer
from clonos.cli.demo.tasks import FIRST, REPLAYED, Attempt


@dataclass(frozen=True)
class Seen:
    """What the world saw of a run: its result, and every (row, value) that was ever visible."""

    result: list[tuple[str, bool]]
    history: list[tuple[str, bool]]


@dataclass(frozen=True)
class Course:
    """What happened while a pipeline ran.

    Attributes
    ----------
    error : str or None
        Why Spark aborted the job; None if it completed.
    seconds : float
        From when the first driver had started Spark to the end.
    lost_at : list of float
        When processes were killed, seconds since 1970.
    attempts : list of Attempt
        All attempts of tasks.
    """

    error: str | None
    seconds: float
    lost_at: list[float]
    attempts: list[Attempt]


@dataclass(frozen=True)
class Verdict:
    """One line of the table.

    Attributes
    ----------
    title : str
        What was run.
    causal : bool
        Under Clonos; then its promises count.
    rows, wrong : int
        Rows there should be, and those that are missing, twice there, not what the service first
        answered, or were seen with two values.
    two_values : int
        Of the wrong rows, those that were seen with two values.
    calls, twice : int
        Calls the service got, and those it had answered before.
    again, replayed : int
        Attempts of tasks that had been attempted before, and those that were pure replay.
    course : Course
        What happened, for the picture.
    """

    title: str
    causal: bool
    rows: int
    wrong: int
    two_values: int
    calls: int
    twice: int
    again: int
    replayed: int
    course: Course

    @property
    def error(self) -> str | None:
        """Why Spark aborted the job; None if it completed."""
        return self.course.error

    def broken_promises(self) -> list[str]:
        """What Clonos promised for this run and did not keep; plain Spark promises nothing."""
        if not self.causal:
            return []
        checks = {
            f"the job completes (it aborted: {self.error})": self.error is None,
            f"every row has the first answer given for it ({self.wrong} have not)": self.wrong == 0,
            f"no recorded call is made again ({self.twice} were)": self.twice == 0,
            "what was lost runs again (nothing did, so this proves nothing)": self.again > 0,
        }
        return [f"{self.title}: {promise}" for promise, kept in checks.items() if not kept]


def judge(
    title: str, rows: set[str], seen: Seen, answers: list[Answer], course: Course, *, causal: bool
) -> Verdict:
    """Compare what was seen with what the service answered."""
    wrong, two_values = wrong_rows(rows, seen, answers)
    asked = Counter(answer.row for answer in answers)
    again = [attempt for attempt in course.attempts if attempt.kind != FIRST]
    return Verdict(
        title=title,
        causal=causal,
        rows=len(rows),
        wrong=len(wrong),
        two_values=len(two_values),
        calls=len(answers),
        twice=len(answers) - len(asked),
        again=len(again),
        replayed=sum(1 for attempt in again if attempt.kind == REPLAYED),
        course=course,
    )


def wrong_rows(rows: set[str], seen: Seen, answers: list[Answer]) -> tuple[set[str], set[str]]:
    """Rows that are wrong in any way, and of these the rows that were seen with two values."""
    first: dict[str, bool] = {}
    for answer in answers:
        first.setdefault(answer.row, answer.banned)
    times = Counter(row for row, _ in seen.result)
    not_once = {row for row in rows | set(times) if times[row] != 1 or row not in rows}
    other = {row for row, banned in seen.result if first.get(row) != banned}
    values: dict[str, set[bool]] = {}
    for row, banned in [*seen.result, *seen.history]:
        values.setdefault(row, set()).add(banned)
    two_values = {row for row, known in values.items() if len(known) > 1}
    return not_once | other | two_values, two_values


def read_result(path: Path) -> Seen:
    """Result of a batch job; empty if it has none."""
    if not path.exists():
        return Seen([], [])
    with path.open() as file:
        pairs = [json.loads(line) for line in file]
    return Seen([(row, bool(banned)) for row, banned in pairs], [])


def read_sink(path: Path) -> Seen:
    """Rows in the sink of a streaming query, and all that were ever visible there."""
    if not path.exists():
        return Seen([], [])
    with closing(sqlite3.connect(path)) as sink:
        result = sink.execute("select row, banned from words").fetchall()
        history = sink.execute("select row, banned from history").fetchall()
    return Seen(
        [(row, bool(banned)) for row, banned in result],
        [(row, bool(banned)) for row, banned in history],
    )
