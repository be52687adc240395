"""The picture: words over time, kills, and how old the newest result was."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from trial import Course

COLOURS = {"worker": "#fdae61", "executor": "#d7191c", "driver": "black", "receiver": "#2c7bb6"}


def draw(courses: list[Course], path: Path) -> Path:
    """Draw the runs side by side and save them as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, len(courses), figsize=(7 * len(courses), 6), squeeze=False, sharex="col", sharey="row",
        layout="constrained",
    )  # fmt: skip
    for column, course in enumerate(courses):
        _draw_words(axes[0][column], course)
        _draw_age(axes[1][column], course)
    line = plt.Line2D
    handles = [line([], [], color=c, label=f"{what} killed") for what, c in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _times(course: Course) -> list[float]:
    return [sample.at - course.begun for sample in course.samples]


def _draw_words(axes: Any, course: Course) -> None:
    faults = "; ".join(course.verdict.faults) if course.verdict else "not finished"
    title = f"{course.plan.title}: {faults or 'each word once'}"
    axes.set_title(textwrap.fill(title, 80), fontsize=9)
    words = [sample.words for sample in course.samples]
    axes.plot(_times(course), words, label="sent", color="0.7")
    asked = [sample.answered for sample in course.samples]
    axes.plot(_times(course), asked, label="asked for", color="#2c7bb6")
    counted = [sample.counted for sample in course.samples]
    axes.plot(_times(course), counted, label="counted, not banned", color="#1a9641")
    axes.set_ylabel("words")
    axes.legend(fontsize=8)
    _draw_kills(axes, course)


def _draw_age(axes: Any, course: Course) -> None:
    known = [sample for sample in course.samples if sample.newest]
    times = [sample.at - course.begun for sample in known]
    axes.plot(times, [sample.at - sample.newest for sample in known], color="0.2", linewidth=0.8)
    axes.set_ylabel("age of the newest result, s")
    axes.set_xlabel("seconds")
    _draw_kills(axes, course)


def _draw_kills(axes: Any, course: Course) -> None:
    for kill in course.kills:
        axes.axvline(kill.at - course.begun, color=COLOURS[kill.what], linewidth=0.7, alpha=0.7)
