"""Main program of an executor's agent: everything it does is in the core."""

from __future__ import annotations

import os
import sys

from clonos import _core
from clonos._config import HOST_LABEL


def main() -> None:
    """Serve until the executor or the application is gone."""
    folder, watch_pid = sys.argv[1], int(sys.argv[2])
    config = _core.SessionConfig.from_bytes(sys.stdin.buffer.read())
    sys.stdin.close()
    config = config.with_host_label(os.environ.get(HOST_LABEL, ""))
    _core.run_executor_agent(config, watch_pid, folder)


if __name__ == "__main__":
    main()
