"""Main program of an executor's agent: everything it does is in the core."""

from __future__ import annotations

import os
import sys
from itertools import pairwise

from clonos import _core, _processes
from clonos._config import HOST_LABEL

# With which Spark starts executors, whatever its cluster manager.
EXECUTOR_FLAG = "--executor-id"


def main() -> None:
    """Serve until the executor or the application is gone."""
    folder, watch_pid = sys.argv[1], int(sys.argv[2])
    config = _core.SessionConfig.from_bytes(sys.stdin.buffer.read())
    sys.stdin.close()
    config = config.with_host_label(os.environ.get(HOST_LABEL, ""))
    _core.run_executor_agent(config, watch_pid, folder, executor_id(watch_pid))


def executor_id(jvm: int) -> str:
    """Spark's name of the executor that a JVM is; empty if it is none, or not this user's."""
    words = _processes.command(jvm) if jvm else []
    return next((name for flag, name in pairwise(words) if flag == EXECUTOR_FLAG), "")


if __name__ == "__main__":
    main()
