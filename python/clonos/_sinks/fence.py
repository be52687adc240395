"""Whether an epoch may be written, decided from what the target remembers. No I/O."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self

from clonos.errors import EpochFenced


@dataclass(frozen=True, slots=True)
class Driver:
    """Which process commits: its host, the JVM's process id, and when that process started.

    `started` is in the kernel's ticks since boot, so that a reused id is another driver.
    """

    host: str
    pid: int
    started: str

    def to_text(self) -> str:
        """Return the form in which a target keeps it."""
        return f"{self.host}:{self.pid}:{self.started}"

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `to_text` wrote; something else is a driver of that name with pid 0."""
        host, _, rest = text.partition(":")
        pid, _, started = rest.partition(":")
        return cls(host, int(pid), started) if pid.isdecimal() else cls(text, 0, "")

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


@dataclass(frozen=True, slots=True)
class Fence:
    """The last epoch of a query that the target holds, and the driver that wrote it."""

    epoch: int
    driver: Driver


@dataclass(frozen=True, slots=True)
class Claim:
    """What a commit asks for: this epoch of this query, on behalf of this driver.

    Parameters
    ----------
    query : str
        Id of the streaming query, or a name made of the target and the epoch of a batch job.
    epoch : int
        Number of the micro-batch; 0 for a batch job.
    driver : Driver
        Who asks.
    label : str
        Epoch as users see it: the number, or the name given to a batch job.
    fenced : bool
        False where the epoch can't come again (a batch job without a name), so that the target
        has nothing to remember.
    """

    query: str
    epoch: int
    driver: Driver
    label: str
    fenced: bool = True


class Decision(enum.Enum):
    """What becomes of an epoch."""

    WRITE = "write"
    DROP = "drop"
    FENCED = "fenced"


def decide(fence: Fence | None, first_epoch: int | None, epoch: int, driver: Driver) -> Decision:
    """Decide about one commit.

    A restarted driver runs again the epoch it was at, and only that one: it is its first. So an
    epoch that is there already is dropped if this driver wrote it, or has written nothing before;
    a driver that had been at work and is overtaken is not alone.

    Parameters
    ----------
    fence : Fence or None
        What the target remembers of the query; None if nothing.
    first_epoch : int or None
        The first epoch that this driver ever committed for the query; None if it has not yet.
    epoch : int
        The epoch to commit.
    driver : Driver
        Who commits it.
    """
    if fence is None or fence.epoch < epoch:
        return Decision.WRITE
    if fence.driver == driver or first_epoch is None or first_epoch == epoch:
        return Decision.DROP
    return Decision.FENCED


def may_write(fence: Fence | None, first_epoch: int | None, claim: Claim) -> bool:
    """Return whether to write the epoch; False means that it has been written.

    Raises
    ------
    EpochFenced
        If another live driver writes the same query.
    """
    decision = decide(fence, first_epoch, claim.epoch, claim.driver)
    if decision is Decision.FENCED and fence is not None:
        raise fenced(claim, fence)
    return decision is Decision.WRITE


def fenced(claim: Claim, fence: Fence | None) -> EpochFenced:
    """Return the error that names both drivers; `fence` is None where the other is not known."""
    other = f"the driver on {fence.driver}" if fence else "another driver"
    has = f"has written epoch {fence.epoch}" if fence else "has taken over"
    message = (
        f"query {claim.query}, epoch {claim.label}: {other} {has}, and this is the driver on "
        f"{claim.driver}. Two drivers run on one checkpointLocation; stop one of them, or, if the "
        "checkpoint was restored from an older copy, give the query a new one"
    )
    return EpochFenced(message, "EPOCH_FENCED")
