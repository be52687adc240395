"""What ``clonos doctor`` asks of each host. It is sent as it is: Clonos may be missing there."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

# Long enough for other executors to take some of the tasks.
_SECONDS = 0.2
# How long an object store may take.
STORE_PATIENCE_S = 5.0


def facts(
    folder: str | None, marker: str, options: dict[str, str], _numbers: Iterable[int]
) -> Iterator[dict[str, Any]]:
    """Tell of the host that this runs on.

    Parameters
    ----------
    folder : str, optional
        The folder, or the URL, meant as ``checkpoint_dir``.
    marker : str
        Name of a file that the driver has written there.
    options : dict
        What an object store is told.

    Yields
    ------
    dict
        One: ``host``; ``machine``, the name that its system has, of which pods of one host have
        others; ``executor``, the number of the process that its workers come from; ``clonos``, its
        version, or why it cannot be imported; ``time``, in seconds since 1970; ``files``, most that
        a process may have open, -1 without a limit; ``folder``, what is wrong with it, empty if
        nothing is; ``is_store``, whether it is an object store. Of Python's version Spark itself
        sees that it is the driver's.
    """
    import resource
    import socket

    time.sleep(_SECONDS)
    try:
        from clonos import __version__, _core

        version = f"{__version__}, {_core.build_profile()}"
    except Exception as error:  # noqa: BLE001, whatever fails is what is told
        version = f"cannot be imported: {error}"
    yield {
        "host": os.environ.get("CLONOS_HOST_LABEL") or socket.gethostname(),
        "machine": socket.gethostname(),
        "executor": os.getppid(),
        "clonos": version,
        "time": time.time(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "folder": "" if folder is None else _trouble(folder, marker, options),
        "is_store": "://" in (folder or ""),
    }


def rows(
    folder: str | None, options: dict[str, str], batches: Iterable[Any]
) -> Iterator[pa.RecordBatch]:
    """As `facts`, for ``mapInArrow``; of a folder it is not known whether it is the driver's."""
    import json

    import pyarrow as pa

    for _ in batches:
        pass
    for told in facts(folder, "", options, ()):
        yield pa.RecordBatch.from_pydict({"told": [json.dumps(told)]})


def _trouble(folder: str, marker: str, options: dict[str, str]) -> str:
    """What keeps this host from working with the driver in `folder`."""
    if "://" in folder:
        return _trouble_with_store(folder, options)
    mine = Path(folder, f"{marker}-{uuid.uuid4().hex}")
    try:
        if not Path(folder, marker).exists():
            return "what the driver wrote there is not seen"
        with mine.open("w") as file:
            file.write("seen")
            file.flush()
            os.fsync(file.fileno())
        # By who wrote it: the driver may be another user.
        mine.unlink()
    except OSError as error:
        return f"{error}"
    return ""


def _trouble_with_store(url: str, options: dict[str, str]) -> str:
    """What keeps this host, with what is in its environment, from writing to an object store."""
    try:
        from clonos import _core

        _core.try_checkpoint(url, options, STORE_PATIENCE_S)
    except Exception as error:  # noqa: BLE001, whatever fails is what is told
        return f"{error}"
    return ""
