"""The decision whether to write, against every interleaving that drivers and crashes can make."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clonos._sinks.fence import Claim, Decision, Driver, EpochFenced, Fence, decide, may_write
from clonos.errors import ClonosError

DRIVERS = [Driver("one", 10, "5"), Driver("two", 10, "5"), Driver("one", 10, "6")]


@dataclass
class World:
    """A target, a checkpoint, and drivers that share both."""

    fence: Fence | None = None
    claims: dict[Driver, int] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)
    checkpoint: int = -1
    # Where each driver that runs is; a driver starts where the checkpoint says.
    at: dict[Driver, int] = field(default_factory=dict)

    def start(self, driver: Driver) -> None:
        self.at[driver] = self.checkpoint + 1

    def commit(self, driver: Driver, *, dies: bool) -> Decision:
        """One fenced transaction; a driver that dies then has not told the checkpoint."""
        epoch = self.at[driver]
        decision = decide(self.fence, self.claims.get(driver), epoch, driver)
        if decision is Decision.FENCED:
            del self.at[driver]
            return decision
        self.claims.setdefault(driver, epoch)
        if decision is Decision.WRITE:
            self.fence = Fence(epoch, driver)
            self.written.append(epoch)
        if dies:
            del self.at[driver]
        else:
            self.at[driver] = epoch + 1
            self.checkpoint = max(self.checkpoint, epoch)
        return decision


ACTIONS = st.lists(
    st.tuples(st.sampled_from(DRIVERS), st.sampled_from(["start", "commit", "die", "again"])),
    max_size=60,
)


@given(ACTIONS)
@settings(max_examples=500)
def test_each_epoch_is_written_once_and_none_is_lost(actions):
    world = World()
    for driver, action in actions:
        if action == "start" or driver not in world.at:
            world.start(driver)
            continue
        epoch = world.at[driver]
        decision = world.commit(driver, dies=action == "die")
        if decision is not Decision.FENCED:
            assert epoch in world.written, "an epoch was dropped that had not been written"
        if action == "again" and driver in world.at:
            # The same commit once more, as after an answer that was lost.
            world.at[driver] = epoch
            assert world.commit(driver, dies=False) is not Decision.WRITE
    assert world.written == list(range(len(world.written)))


def test_a_restarted_driver_drops_only_its_first_epoch():
    old, new, _ = DRIVERS
    fence = Fence(7, old)
    assert decide(fence, None, 7, new) is Decision.DROP
    assert decide(fence, 7, 7, new) is Decision.DROP
    assert decide(fence, 7, 8, new) is Decision.WRITE
    assert decide(Fence(8, old), 7, 8, new) is Decision.FENCED


def test_of_two_drivers_the_slower_is_told():
    one, two, _ = DRIVERS
    claim = Claim("a-query", 9, two, "9")
    with pytest.raises(EpochFenced) as caught:
        may_write(Fence(9, one), 3, claim)
    assert isinstance(caught.value, ClonosError)
    assert caught.value.condition == "EPOCH_FENCED"
    for part in ("a-query", "epoch 9", "host one, pid 10", "host two", "checkpointLocation"):
        assert part in str(caught.value)


def test_drivers_are_kept_as_text():
    for driver in DRIVERS:
        assert Driver.from_text(driver.to_text()) == driver
    assert Driver.from_text("somebody") == Driver("somebody", 0, "")
