"""Loops in stories of drivers that die, come late and are taken back; and what breaks them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_story import tell

from clonos._loops import sink, source
from clonos._loops.folder import LoopFolder, epochs_between
from clonos._loops.sink import LoopTarget
from clonos._loops.source import LoopReader
from clonos._sinks import place
from clonos.errors import ClonosError

SEEDS = int(os.environ.get("CLONOS_LOOP_SEEDS", "15"))
# A breach must be noticed by one of so many.
SEEDS_OF_BREACHES = 100


def test_each_row_comes_back_once_in_a_later_epoch(tmp_path: Path) -> None:
    came_back = 0
    for seed in range(SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            story = tell(tmp_path, seed, patch)
        came_back += sum(map(len, story.read.values()))
        # What was read long ago is gone.
        assert len(story.folder.numbers()) <= 12
    assert came_back > 10 * SEEDS


def visible_in_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    true = LoopReader.partitions

    def all_there_is(self: LoopReader, start: Any, end: Any) -> Any:
        return true(self, start, {**end, "epoch": self._last()})

    patch.setattr(LoopReader, "partitions", all_there_is)
    # What looks for it again where rows are read does not, either.
    patch.setattr(place, "streaming_task", lambda: None)


def deleted_when_read(patch: pytest.MonkeyPatch) -> None:
    true = LoopFolder.committed
    patch.setattr(
        LoopFolder, "committed", lambda self, reader, end, _retained: true(self, reader, end, 0)
    )


def deleted_a_little_too_early(patch: pytest.MonkeyPatch) -> None:
    true = LoopFolder.committed
    patch.setattr(
        LoopFolder,
        "committed",
        lambda self, reader, end, retained: true(self, reader, end, retained - 2),
    )


def without_the_fence(patch: pytest.MonkeyPatch) -> None:
    true = LoopTarget._publish

    def over_what_is_there(self: LoopTarget, staged: Any, claim: Any, newest: Any) -> None:
        # The file system would not put a folder over another, either.
        shutil.rmtree(self.folder.epoch(claim.epoch), ignore_errors=True)
        if newest is not None and newest.number == claim.epoch:
            newest = replace(newest, number=-1, parts=())
        true(self, staged, claim, newest)

    patch.setattr(LoopTarget, "_publish", over_what_is_there)
    patch.setattr(sink, "may_write", lambda *_: True)
    patch.setattr(LoopTarget, "_check", lambda *_: None)
    patch.setattr(LoopTarget, "_forget", lambda *_: None)


def without_the_fence_of_epochs_without_rows(patch: pytest.MonkeyPatch) -> None:
    true = LoopTarget._publish

    def publish(self: LoopTarget, staged: Any, claim: Any, newest: Any) -> None:
        if any(message.rows for message in staged):
            true(self, staged, claim, newest)

    patch.setattr(LoopTarget, "_publish", publish)
    patch.setattr(LoopTarget, "_forget", lambda *_: None)


def shown_file_by_file(patch: pytest.MonkeyPatch) -> None:
    """The folder has its name before the files are in it."""
    true = Path.rename

    def rename(self: Path, target: Any) -> Any:
        if self.suffix == ".arrow":
            target = LoopFolder(self.parents[3]).epoch(int(self.parent.parent.name)) / self.name
            target.parent.mkdir(parents=True, exist_ok=True)
        return true(self, target)

    patch.setattr(Path, "rename", rename)


def only_the_last_epoch_is_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(source, "epochs_between", lambda *asked: epochs_between(*asked)[-1:])


@pytest.mark.parametrize(
    "breach",
    [
        visible_in_the_same_epoch,
        deleted_when_read,
        deleted_a_little_too_early,
        without_the_fence,
        without_the_fence_of_epochs_without_rows,
        shown_file_by_file,
        only_the_last_epoch_is_read,
    ],
)
def test_a_breach_of_a_promise_is_noticed(
    tmp_path: Path, breach: Callable[[pytest.MonkeyPatch], None]
) -> None:
    for seed in range(SEEDS_OF_BREACHES):
        with pytest.MonkeyPatch.context() as patch:
            try:
                tell(tmp_path, seed, patch, breach)
            except (AssertionError, ClonosError, OSError):
                return
    pytest.fail("no story noticed it")
