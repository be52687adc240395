"""``clonos top``: what the sessions of this machine do, live."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clonos import _core
from clonos._stats import OperatorStats, Stats
from clonos.cli.inspection import sessions
from clonos.errors import ClonosError

Reading = tuple[str, Stats]


def run(interval: float, once: bool) -> int:
    """Show what each session does, every `interval` seconds until interrupted, or once."""
    console = Console()
    screen = Screen(read)
    if once:
        console.print(screen.next())
        return 0
    try:
        with Live(screen.next(), console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(interval)
                live.update(screen.next(), refresh=True)
    except KeyboardInterrupt:
        return 0


def read() -> list[Reading]:
    """Name and figures of the sessions that answer."""
    found = []
    for config in sessions():
        try:
            found.append((config.app_id, Stats.parse(_core.cluster_stats(config))))
        except ClonosError:
            # Its driver was killed, or ends just now.
            continue
    return found


class Screen:
    """One picture after the other; rates are those since the picture before.

    Parameters
    ----------
    source : callable
        Gives name and figures of each session.
    """

    def __init__(self, source: Callable[[], list[Reading]]) -> None:
        self._source = source
        self._before: dict[tuple[str, str], int] = {}
        self._at = time.monotonic()

    def next(self) -> RenderableType:
        """Return the picture of now."""
        now = time.monotonic()
        seconds, self._at = now - self._at, now
        readings = self._source()
        if not readings:
            return Text("No running session of yours on this machine.")
        return Group(*(part for name, stats in readings for part in self._of(name, stats, seconds)))

    def _of(self, session: str, stats: Stats, seconds: float) -> list[RenderableType]:
        agents, totals = stats.agents, stats.totals
        head = (
            f"{session}: {sum(agent.alive for agent in agents)} of {len(agents)} agents answer, "
            f"{len(stats.tasks)} logs open, "
            f"{decimal(sum(agent.memory_bytes for agent in agents))} in memory, "
            f"{decimal(sum(agent.spilled_bytes for agent in agents))} spilled, "
            f"{totals.commits} epochs committed, {totals.lost} logs lost"
        )
        table = Table(
            "operator", "rows/s", "rows", "replayed", "calls", "saved", "time saved", "log"
        )
        for column in table.columns[1:]:
            column.justify = "right"
        for one in sorted(stats.operators, key=lambda one: -one.rows):
            table.add_row(*self._row(session, one, seconds))
        return [Text(head), table]

    def _row(self, session: str, one: OperatorStats, seconds: float) -> list[str]:
        before = self._before.get((session, one.operator))
        self._before[session, one.operator] = one.rows
        rate = "" if before is None or seconds <= 0 else f"{(one.rows - before) / seconds:,.0f}"
        return [
            one.operator,
            rate,
            f"{one.rows:,}",
            f"{one.replayed:,}",
            f"{one.calls:,}",
            f"{one.saved:,}",
            f"{one.saved_seconds:,.1f} s",
            decimal(one.bytes),
        ]
