"""What is in the sink, and whether it is what it must be by the records of sender and service."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from servers import WORDS_PER_LINE, Sender, Service

WINDOW_SECONDS = 5.0


@dataclass(frozen=True)
class Count:
    """One row of the sink; `start` and `received` in seconds since 1970."""

    start: float
    word: str
    count: int
    received: float


def read_counts(path: Path) -> list[Count]:
    """Return the rows of the sink: none if there is no table yet."""
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        rows = connection.execute("SELECT start, word, count, received FROM counts").fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()
    return [Count(_seconds(row[0]), row[1], row[2], _seconds(row[3])) for row in rows]


def _seconds(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True)
class Verdict:
    """What a run came to; `faults` says in words what is wrong, and is empty if nothing is."""

    sent: int
    asked: int
    asked_twice: int
    kept: int
    counted: int
    faults: list[str]


def judge(counts: list[Count], sender: Sender, service: Service) -> Verdict:
    """Compare the sink with the records of sender and service."""
    kept = service.kept()
    wanted = Counter(word for word, _ in kept)
    found: Counter[str] = Counter()
    for row in counts:
        found[row.word] += row.count
    faults = []
    words = len(sender.lines) * WORDS_PER_LINE
    if len(service.answers) != words:
        faults.append(
            f"{words} words were sent, the service was asked about {len(service.answers)}"
        )
    wrong = {word for word in wanted | found if wanted[word] != found[word]}
    if wrong:
        lost = sum(max(0, wanted[word] - found[word]) for word in wrong)
        more = sum(max(0, found[word] - wanted[word]) for word in wrong)
        faults.append(f"{lost} words are missing in the sink and {more} are too many")
    windows = Counter((row.start, row.word) for row in counts)
    doubled = [key for key, number in windows.items() if number > 1]
    if doubled:
        faults.append(f"{len(doubled)} windows are there twice")
    faults += early(counts, kept)
    return Verdict(
        sent=words,
        asked=service.asked,
        # Without idempotency keys each call is another word to the service.
        asked_twice=service.asked - min(len(service.answers), words),
        kept=len(kept),
        counted=sum(found.values()),
        faults=faults,
    )


def early(counts: list[Count], kept: list[tuple[str, float]]) -> list[str]:
    """Find words that are counted in windows that had ended before the service was asked."""
    answered = defaultdict(list)
    for word, at in kept:
        answered[word].append(at)
    in_window = defaultdict(list)
    for row in counts:
        in_window[row.word].append((row.start + WINDOW_SECONDS, row.count))
    too_early = 0
    for word, windows in in_window.items():
        times = sorted(answered[word])
        total = excess = 0
        for end, number in sorted(windows):
            total += number
            excess = max(excess, total - bisect_left(times, end))
        too_early += excess
    if not too_early:
        return []
    return [f"{too_early} words are in windows that ended before the service was asked"]
