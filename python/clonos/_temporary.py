"""Own folder of a user among the system's temporary files.

Sockets, secrets and logs stand there under names that anybody can foresee, so it matters who made
the folder. Needs nothing but Python: it is used before the package is built.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

# The configuration of a session, for processes on this host: in its folder, beside the socket.
SESSION_FILE = "session"


def private_folder(*names: str) -> Path:
    """Return a folder below this user's own, made where it is not there.

    Parameters
    ----------
    *names : str
        Of folders inside each other.

    Raises
    ------
    PermissionError
        If one of them is another user's, a link, or others may write into it.
    """
    folder = Path(tempfile.gettempdir()) / f"clonos-{os.getuid()}"
    _own(folder)
    for name in names:
        folder = folder / name
        _own(folder)
    return folder


def _own(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    shared = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or shared:
        message = (
            f"{folder} is not a folder that only this user can write into: remove it, or set "
            "TMPDIR to a folder of your own"
        )
        raise PermissionError(message)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that nobody else can read, in place of any that is there."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
