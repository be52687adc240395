"""What `Session.stats` tells: what agents hold, and what became of each operator."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any, Self


class _Record:
    """A record of the core's report; fields that a newer core adds are left out."""

    @classmethod
    def read(cls, report: dict[str, Any]) -> Self:
        """Make the record of a part of the report."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: _shown(report[name]) for name in names})


def _shown(value: Any) -> Any:
    """Return a name without what only the core tells its logs apart by."""
    return re.sub("\x01[^@]*", "", value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class AgentStats(_Record):
    """One agent.

    Attributes
    ----------
    addr, host : str
        Where it listens, and the name of its host.
    alive : bool
        Whether it answered.
    logs : int
        Logs it holds.
    memory_bytes, spilled_bytes : int
        Bytes of logs in memory and on disk.
    sent_bytes : int
        Bytes sent to other agents since its start.
    state_bytes : int
        Bytes of keyed state in memory.
    """

    addr: str
    host: str
    alive: bool
    logs: int
    memory_bytes: int
    spilled_bytes: int
    sent_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class TaskStats(_Record):
    """One task of an epoch that is not committed.

    Attributes
    ----------
    task, operator, partition : str, str and int
        ``operator@query/epoch/partition``, and its parts.
    opens : int
        How often it was opened in this application.
    holders : list of str
        Agents that hold its log.
    bytes, spilled, sent, in_flight : int
        Bytes of its log, of them spilled, sent to other agents, and bytes of frames that are kept.
    rows : int
        Rows of the last attempt.
    replayed, live : int
        Rows answered from the log, and rows run live, over all attempts.
    lost : int
        Attempts that found the log lost.
    ran_live, ran_replayed, resent : int
        Attempts that came to their end with nothing recorded before, with a recorded log, and by
        sending the frames of an earlier one.
    """

    task: str
    operator: str
    partition: int
    opens: int
    holders: list[str]
    bytes: int
    spilled: int
    sent: int
    in_flight: int
    rows: int
    replayed: int
    live: int
    lost: int
    ran_live: int
    ran_replayed: int
    resent: int


@dataclass(frozen=True, slots=True)
class OperatorStats(_Record):
    """One operator since the session began, committed epochs included.

    Attributes
    ----------
    operator : str
        Its ``uid``.
    attempts : int
        Attempts of its tasks that came to an end.
    rows, replayed, live : int
        Rows it was given; of them answered from the log, and run live.
    calls : int
        Calls that were made: rows of a function whose results are recorded, else calls of services.
    saved : int
        Calls that were not made again, because their answers were recorded.
    bytes : int
        Bytes logged.
    lost : int
        Logs found lost.
    call_ns : int
        Nanoseconds that the calls took.
    """

    operator: str
    attempts: int
    rows: int
    replayed: int
    live: int
    calls: int
    saved: int
    bytes: int
    lost: int
    call_ns: int

    @property
    def saved_seconds(self) -> float:
        """Seconds of work that was not done again, at the mean of the calls that were made."""
        return self.saved * self.call_ns / self.calls / 1e9 if self.calls else 0.0


@dataclass(frozen=True, slots=True)
class Totals(_Record):
    """Sums since the session began.

    Attributes
    ----------
    opens, closed : int
        Attempts that were opened, and that came to an end.
    rows, replayed, live : int
        Rows; of them answered from a log, and run live.
    calls, bytes : int
        Calls made, and bytes logged.
    ran_replayed, resent : int
        Attempts that ended with a recorded log, or by sending the frames of an earlier one.
    discarded, lost : int
        Logs given up because their inputs were gone, and logs found lost.
    commits : int
        Epochs committed.
    """

    opens: int
    closed: int
    rows: int
    replayed: int
    live: int
    calls: int
    bytes: int
    ran_replayed: int
    resent: int
    discarded: int
    lost: int
    commits: int


@dataclass(frozen=True, slots=True)
class StateStats(_Record):
    """The keyed state of one operator of one query.

    Attributes
    ----------
    state : str
        ``operator@query``.
    version : int or None
        The last committed epoch that changed it; None before the first.
    copies : int
        Agents that have all of a part: of the part that has fewest.
    joining : int
        Parts (of 256) that agents are making copies of.
    promoted : int
        Parts that standbys have served since another agent's death.
    bytes : int
        Bytes of entries, on all agents together.
    lag : int
        Epochs by which the slowest agent is behind; it catches up when it is asked.
    """

    state: str
    version: int | None
    copies: int
    joining: int
    promoted: int
    bytes: int
    lag: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What all agents of a session hold and have done.

    Attributes
    ----------
    agents : list of AgentStats
    tasks : list of TaskStats
        Of epochs that are not committed.
    operators : list of OperatorStats
        By name.
    totals : Totals
    states : list of StateStats
        Of operators with keyed state.
    """

    agents: list[AgentStats]
    tasks: list[TaskStats]
    operators: list[OperatorStats]
    totals: Totals
    states: list[StateStats]

    @classmethod
    def parse(cls, report: str) -> Self:
        """Read the core's report, JSON."""
        parts = json.loads(report)
        return cls(
            agents=[AgentStats.read(part) for part in parts["agents"]],
            tasks=[TaskStats.read(part) for part in parts["tasks"]],
            operators=[OperatorStats.read(part) for part in parts["operators"]],
            totals=Totals.read(parts["totals"]),
            states=[StateStats.read(part) for part in parts["states"]],
        )
