"""Runs the example with all that it needs, kills parts of it, and checks the result."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import picture
import typer
import view
from chaos import KINDS
from trial import HERE, Course, Plan, run

from clonos._driver.java import ensure_java
from clonos.cli.demo.processes import spark_home

RUNS = {
    "plain": ("plain Spark", HERE / "plain.py", ("worker", "executor", "driver")),
    "clonos": ("Clonos", HERE.parent / "banned_words.py", KINDS),
}


def main(
    chaos: Annotated[bool, typer.Option(help="Kill parts of it at random times.")] = False,
    seconds: Annotated[float, typer.Option(help="How long lines are sent, each run.")] = 60.0,
    rate: Annotated[float, typer.Option(help="Lines per second.")] = 20.0,
    pause: Annotated[float, typer.Option(help="Seconds between kills, on average.")] = 6.0,
    only: Annotated[str, typer.Option(help="'plain' or 'clonos': one of the two runs.")] = "",
    seed: Annotated[int, typer.Option(help="Of what is killed when.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo-output"),
    keep: Annotated[bool, typer.Option(help="Keep working files.")] = False,
) -> None:
    """Count words as plain Spark and as Clonos; exit code 1 if Clonos counted wrong."""
    ensure_java()
    if only and only not in RUNS:
        raise typer.BadParameter("it must be 'plain' or 'clonos'", param_hint="--only")
    out.mkdir(parents=True, exist_ok=True)
    # Not below `out`: paths of sockets are short.
    work = Path(tempfile.mkdtemp(prefix="banned-words-"))
    home = spark_home(work)
    courses: list[Course] = []
    with view.View() as shown:
        for name in [only] if only else list(RUNS):
            title, script, kinds = RUNS[name]
            plan = Plan(
                title=title, script=script, seconds=seconds, rate=rate, pause=pause,
                kinds=kinds if chaos else (), acknowledged=name == "clonos", seed=seed,
            )  # fmt: skip
            courses.append(run(plan, work / name, home, shown.show))
    good = view.report(courses)
    view.console.print(f"Picture: {picture.draw(courses, out / 'banned_words.png')}")
    if keep or not good:
        view.console.print(f"What the runs wrote is in {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)
    raise typer.Exit(0 if good else 1)


if __name__ == "__main__":
    typer.run(main)
