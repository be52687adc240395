"""What the terminal shows: the run as it goes, and the verdicts at the end."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from trial import Course

console = Console()
NEVER = 1.0
# Without a terminal a line now and then is all that is useful.
QUIET_SAMPLES = 40


class View:
    """The run that goes on."""

    def __init__(self) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._live.stop()

    def show(self, course: Course) -> None:
        """Show the last sample."""
        if console.is_terminal:
            self._live.update(_table(course))
        elif len(course.samples) % QUIET_SAMPLES == 0:
            console.print(_line(course))


def _table(course: Course) -> Any:
    last = course.samples[-1]
    table = Table(title=course.plan.title, show_header=False, min_width=50)
    table.add_row("seconds", f"{last.at - course.begun:.0f}")
    table.add_row("words sent", f"{last.words:,}")
    if course.plan.acknowledged:
        table.add_row("lines acknowledged", f"{last.safe:,}")
    table.add_row("words asked for", f"{last.answered:,}")
    table.add_row("words counted in the sink", f"{last.counted:,}")
    age = last.at - last.newest if last.newest > NEVER else None
    table.add_row("age of the newest result", "none yet" if age is None else f"{age:.1f} s")
    table.add_row("drivers started", str(course.starts))
    kills = ", ".join(kill.what for kill in course.kills[-8:])
    table.add_row("killed", f"{len(course.kills)}: {kills}" if kills else "nothing yet")
    return table


def _line(course: Course) -> str:
    last = course.samples[-1]
    return (
        f"{course.plan.title}: {last.at - course.begun:.0f} s, {last.words} words sent, "
        f"{last.counted} counted, {len(course.kills)} kills"
    )


def report(courses: list[Course]) -> bool:
    """Print the verdicts; whether all runs whose lines are acknowledged are as they must be."""
    table = Table(title="Banned words", caption="asked twice: calls beyond one for each word")
    table.add_column("run")
    for name in ("kills", "words sent", "asked twice", "to be counted", "counted"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    good = True
    for course in courses:
        verdict = course.verdict
        if verdict is None:
            continue
        good = good and not (course.plan.acknowledged and verdict.faults)
        table.add_row(
            course.plan.title,
            str(len(course.kills)),
            f"{verdict.sent:,}",
            f"{verdict.asked_twice:,}",
            f"{verdict.kept:,}",
            f"{verdict.counted:,}",
            "wrong" if verdict.faults else "each word once",
        )
    console.print(table)
    for course in courses:
        for fault in course.verdict.faults if course.verdict else []:
            console.print(f"{course.plan.title}: {fault}")
    return good
