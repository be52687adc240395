"""Stand-ins for what Spark 4.1 lacks: without them a batch takes all rows that there are."""

from __future__ import annotations

from dataclasses import dataclass


class ReadLimit:
    """How much a batch may take."""


class ReadAllAvailable(ReadLimit):
    """All there is."""


@dataclass
class ReadMaxRows(ReadLimit):
    """So many rows."""

    max_rows: int


class SupportsTriggerAvailableNow:
    """Marks a reader."""
