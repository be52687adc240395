"""What the demo shows: progress while it runs, then one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from rich import progress as rich_progress
from rich.console import Console
from rich.table import Table

from clonos.cli.demo.verdict import Verdict

# In a file the table needs room that no terminal dictates.
FILE_WIDTH = 110
_console = Console() if Console().is_terminal else Console(width=FILE_WIDTH)


class Progress:
    """One line per trial, and lasting lines for what is killed."""

    def __init__(self, titles: list[str]) -> None:
        self._bar = rich_progress.Progress(
            rich_progress.SpinnerColumn(finished_text="✓"),
            rich_progress.TextColumn("{task.fields[title]:<24}"),
            rich_progress.TextColumn("{task.description}"),
            rich_progress.TimeElapsedColumn(),
            console=_console,
        )
        self._lines = {
            title: self._bar.add_task("waiting", title=title, total=1, start=False)
            for title in titles
        }

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._bar.stop()

    def begin(self, title: str) -> Callable[[str], None]:
        """Start the line of a trial; what is returned changes its text.

        A text that begins with an exclamation mark is an event, and stays.
        """
        line = self._lines[title]
        self._bar.start_task(line)
        said = ""

        def say(text: str) -> None:
            nonlocal said
            phase = text.partition(":")[0]
            if text.startswith("!"):
                _console.print(f"  [bold red]{title}: {text[1:]}[/]", highlight=False)
            elif not _console.is_terminal and phase != said:
                # Nothing moves in a file: one line per phase.
                _console.print(f"  {title}: {text}", highlight=False)
            self._bar.update(line, description=text.lstrip("!"))
            said = phase

        return say

    def end(self, verdict: Verdict) -> None:
        """Finish the line of a trial."""
        line = self._lines[verdict.title]
        self._bar.update(line, description=_outcome(verdict), completed=1)


def show(verdicts: list[Verdict], picture: Path, seconds: float) -> list[str]:
    """Print the table and what follows from it; gives the promises Clonos broke."""
    table = Table(title="One executor, then everything, killed with SIGKILL", title_justify="left")
    table.add_column("run")
    table.add_column("outcome")
    for heading in ("rows wrong", "calls made", "made twice", "tasks run again", "seconds"):
        table.add_column(heading, justify="right")
    for verdict in verdicts:
        table.add_row(*_cells(verdict), style="" if verdict.causal else "dim")
    _console.print(table)
    for verdict in verdicts:
        if verdict.error is not None:
            _console.print(
                f"{verdict.title}: {_reason(verdict.error)}", style="red", highlight=False
            )
    _console.print(
        "Wrong: missing, twice there, not what the service first answered for the row, or seen "
        "with two values. Made twice: calls the service had answered for that row before.",
        style="dim",
    )
    _console.print(f"Picture: {picture}   ({seconds:.0f} s in all)", highlight=False)
    broken = [promise for verdict in verdicts for promise in verdict.broken_promises()]
    for promise in broken:
        fail(f"Clonos did not keep its promise: {promise}")
    if not broken:
        _console.print("Clonos kept its promises.", style="bold green")
    return broken


def say(text: str) -> None:
    """Print a line."""
    _console.print(text, highlight=False)


def fail(text: str) -> None:
    """Print a line about what went wrong."""
    _console.print(text, style="bold red", highlight=False)


def _cells(verdict: Verdict) -> list[str]:
    if verdict.error is not None and verdict.wrong == verdict.rows:
        wrong = "no result"
    else:
        wrong = f"{verdict.wrong} of {verdict.rows}"
    again = str(verdict.again)
    if verdict.replayed:
        again += f" ({verdict.replayed} replayed)"
    bad, good = "[bold red]", "[green]"
    return [
        verdict.title,
        (good if verdict.error is None else bad) + _outcome(verdict),
        (bad if verdict.wrong else good) + wrong,
        str(verdict.calls),
        (bad if verdict.twice else good) + str(verdict.twice),
        again,
        f"{verdict.course.seconds:.1f}",
    ]


def _outcome(verdict: Verdict) -> str:
    return "completed" if verdict.error is None else "aborted"


def _reason(error: str) -> str:
    """Spark's sentence in the middle of its stack traces."""
    for mark in ("A shuffle map stage with indeterminate output", "Job aborted due to"):
        start = error.find(mark)
        if start >= 0:
            return error[start:].partition(". ")[0].splitlines()[0]
    return error.strip().splitlines()[0] if error.strip() else "no reason given"
