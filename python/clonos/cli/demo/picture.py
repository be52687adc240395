"""The picture: which tasks ran, ran again and were replayed, over time, per executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clonos.cli.demo.tasks import AGAIN, FIRST, REPLAYED, Attempt
from clonos.cli.demo.verdict import Verdict

_COLOURS = {FIRST: "#9ecae1", AGAIN: "#de2d26", REPLAYED: "#31a354"}
_STAGE_HATCH = "////"
_LANE_HEIGHT = 0.8
# As much is drawn of the time in which a new driver starts: what Spark needs for its JVMs is the
# same on both sides, and would hide how little time recovery takes.
_START_SECONDS = 1.0


def draw(verdicts: list[Verdict], path: Path) -> Path:
    """Draw plain Spark beside Clonos, one row per kind of failure, and save it as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plain = [verdict for verdict in verdicts if not verdict.causal]
    causal = [verdict for verdict in verdicts if verdict.causal]
    rows = max(len(plain), len(causal))
    figure, axes = plt.subplots(
        rows, 2, figsize=(14, 3.2 * rows), squeeze=False, sharex="row", layout="constrained"
    )
    for row, pair in enumerate(zip(plain, causal, strict=True)):
        for column, verdict in enumerate(pair):
            _draw_run(axes[row][column], verdict)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _draw_run(axes: Any, verdict: Verdict) -> None:
    outcome = "completed" if verdict.error is None else "aborted"
    wrong = "no result" if verdict.error else f"{verdict.wrong} rows wrong"
    axes.set_title(f"{verdict.title}: {outcome}, {wrong}, {verdict.twice} calls made twice")
    axes.set_xlabel("seconds")
    if not verdict.course.attempts:
        return
    clock = _Clock(verdict)
    lanes = sorted({(a.driver, int(a.executor)) for a in verdict.course.attempts}, reverse=True)
    for attempt in verdict.course.attempts:
        lane = lanes.index((attempt.driver, int(attempt.executor)))
        _draw_attempt(axes, attempt, lane, clock)
    for lost_at in verdict.course.lost_at:
        axes.axvline(clock.of(lost_at, 0), color="black", linestyle="--")
        skipped = f", {clock.skipped:.0f} s to start Spark\nare not drawn" if clock.skipped else ""
        axes.annotate(
            f"SIGKILL{skipped}", (clock.of(lost_at, 0), 1), xycoords=("data", "axes fraction"),
            xytext=(3, -3), textcoords="offset points", fontsize=8, va="top",
        )  # fmt: skip
    axes.set_yticks(range(len(lanes)), [_lane_name(lane, lanes) for lane in lanes])


class _Clock:
    """Seconds since the first task, without those in which a new driver started."""

    def __init__(self, verdict: Verdict) -> None:
        attempts = verdict.course.attempts
        self._zero = min(attempt.start for attempt in attempts)
        again = [attempt.start for attempt in attempts if attempt.driver]
        lost_at = verdict.course.lost_at[-1] if verdict.course.lost_at else self._zero
        self.skipped = max(0.0, min(again) - lost_at - _START_SECONDS) if again else 0.0

    def of(self, at: float, driver: int) -> float:
        return at - self._zero - (self.skipped if driver else 0.0)


def _draw_attempt(axes: Any, attempt: Attempt, lane: int, clock: _Clock) -> None:
    width = max(attempt.end - attempt.start, 0.03)
    left = clock.of(attempt.start, attempt.driver)
    axes.barh(
        lane, width, left=left, height=_LANE_HEIGHT, color=_COLOURS[attempt.kind],
        edgecolor="white" if attempt.ok else "black", linewidth=0.8,
        hatch=None if attempt.asks else _STAGE_HATCH, alpha=1.0 if attempt.ok else 0.6,
    )  # fmt: skip
    axes.text(
        left + width / 2, lane, str(attempt.place[2]), ha="center", va="center", fontsize=7,
        clip_on=True,
    )  # fmt: skip


def _lane_name(lane: tuple[int, int], lanes: list[tuple[int, int]]) -> str:
    driver, executor = lane
    restarted = any(other for other, _ in lanes)
    if not restarted:
        return f"executor {executor}"
    return f"{'after' if driver else 'before'}: executor {executor}"


def _legend() -> list[Any]:
    from matplotlib.patches import Patch

    kinds = [Patch(facecolor=colour, label=kind) for kind, colour in _COLOURS.items()]
    return [
        *kinds,
        Patch(facecolor="white", edgecolor="black", hatch=_STAGE_HATCH, label="asks nothing"),
        Patch(facecolor="white", edgecolor="black", label="lost or failed; number: partition"),
    ]
