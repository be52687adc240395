"""Settings of an agent in this process, for tests that need no Spark."""

from __future__ import annotations

from pathlib import Path

from clonos import _core

SECRET = bytes(range(32))


def make_config(
    folder: Path, secret: bytes = SECRET, checkpoint_dir: Path | None = None
) -> _core.SessionConfig:
    return _core.SessionConfig(
        app_id="unit",
        secret=secret,
        driver_addr="",
        driver_socket=str(folder / "a.sock"),
        local=True,
        guarantee="exactly_once",
        sharing_depth=0,
        memory_bytes=64 << 20,
        disk_bytes=1 << 30,
        spill_policy="availability",
        clock_resolution_ns=0,
        compress_frames=True,
        spill_dir=str(folder),
        checkpoint_dir=None if checkpoint_dir is None else str(checkpoint_dir),
        agent_scope="executor",
        on_lost="rollback",
        on_ambiguous="error",
        io_timeout_ms=2_000,
    )
