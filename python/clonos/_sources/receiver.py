"""Finding the receiver of a log, or starting it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clonos import _children, _core
from clonos.errors import AgentError, ConfigError, SourceInUse

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from clonos._sources.base import ReplayableSource
    from clonos._sources.options import SourceOptions

START_SECONDS = 30.0
STORED_START_SECONDS = 600.0
PAUSE_SECONDS = 0.05
# How long a host elsewhere may take to accept a connection.
ELSEWHERE_SECONDS = 3.0
LOG_TAIL_BYTES = 2000
SECRET_BYTES = 32
# Exit code of a receiver that found the log's lock held by another one.
HELD = 3
# Exit code of a receiver that found the log taken by one elsewhere, which it must leave it to.
TAKEN = 4
# Exit codes of a receiver that found no free port, and of one that refused a setting otherwise.
NO_PORT, REFUSED = 5, 6


@dataclass(frozen=True)
class Spec:
    """What a receiver is started with."""

    source: ReplayableSource
    options: SourceOptions
    schema: StructType
    #: Stands for the reader that starts the receiver, and starts it again when it dies.
    reader: str = ""
    #: Incarnation of the receiver that it stands in for, if it stands in for one.
    after: int | None = None

    def location(self) -> _core.Location:
        """Return where the log lies, with what its store is told."""
        session = self.source.session
        config = None if session is None else _core.SessionConfig.from_bytes(session)
        return _core.Location(self.options.log, config, encrypt=self.options.encrypt)


def prepare_folder(folder: str) -> Path:
    """Make the folder of a log, private to the user, with the secret in it."""
    path = Path(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = path / "secret"
    if not file.exists():
        fresh = path / f"secret.{os.getpid()}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(secrets.token_bytes(SECRET_BYTES))
        # Of two that make one at once, the first one's counts.
        try:
            file.hardlink_to(fresh)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path


def secret_of(folder: Path) -> bytes:
    """Return the secret of a log."""
    return (folder / "secret").read_bytes()


def address_of(folder: Path) -> str | None:
    """Return where the receiver of a log was last reached."""
    addr = _told(folder, "addr")
    return None if addr is None else str(addr)


def encrypts(folder: Path) -> bool:
    """Return whether the receiver of a log encrypts, by its own word on disk."""
    return _told(folder, "encrypt") is True


def log_of(folder: Path) -> str:
    """Return where the log of a receiver lies, by its own word; nothing if it does not say."""
    return str(_told(folder, "log") or "")


def _told(folder: Path, name: str) -> Any:
    try:
        return json.loads((folder / "receiver.json").read_text())[name]
    except (OSError, ValueError, KeyError):
        return None


def find(
    folder: Path, *, encrypt: bool, elsewhere: bool = True
) -> tuple[_core.SourceClient, str] | None:
    """Return a connection to the receiver of a log, and its address for others, if one answers.

    Parameters
    ----------
    folder : Path
    encrypt : bool
        Whether the connection is encrypted.
    elsewhere : bool
        Whether it may be on another host, too, that has the folder.

    Raises
    ------
    AuthRefused
        If one answers that was started with another `encrypt`.
    """
    addr = address_of(folder)
    if addr is None:
        return None
    here = str(_told(folder, "here") or addr)
    places = [here, addr] if elsewhere and addr != here and _listens(addr) else [here]
    for place in places:
        try:
            return _core.SourceClient.connect(place, secret_of(folder), encrypt), addr
        except AgentError as error:
            if error.condition == "ENCRYPTION_DIFFERS" and encrypts(folder) != encrypt:
                raise
    # Nobody listens on the port any more, or somebody else does.
    return None


def _listens(addr: str) -> bool:
    """Whether something takes connections there: a host that is off does not even refuse them."""
    host, _, port = addr.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ELSEWHERE_SECONDS).close()
    except OSError:
        return False
    return True


def find_or_start(spec: Spec) -> tuple[_core.SourceClient, str]:
    """Return a connection to the receiver of a log, which is started if none answers.

    Raises
    ------
    AgentError
        With the end of the receiver's log file, if it does not start.
    ConfigError
        If it refused a setting, or found no free port for as long as it may take to start.
    SourceInUse
        If the receiver before has lost the log to one elsewhere.
    """
    folder = prepare_folder(spec.options.folder)
    begun = time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    # How the last one has ended, that was started.
    code: int | None = None
    while time.monotonic() < begun + _patience(spec, process):
        code = code if process is None else process.poll() or code
        # One that was started is here, unless it found another.
        elsewhere = process is None or code == HELD
        found = find(folder, encrypt=spec.options.encrypt, elsewhere=elsewhere)
        if found is not None:
            return found
        if process is None or process.poll() in {HELD, NO_PORT}:
            process = _start(spec, folder)
        elif process.poll() is not None:
            break
        time.sleep(PAUSE_SECONDS)
    log = folder / "receiver.log"
    tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""
    said = tail.strip().rpartition("\n")[2]
    if code == TAKEN:
        raise SourceInUse(said, "SOURCE_IN_USE")
    if code in {NO_PORT, REFUSED}:
        raise ConfigError(said, "CONFIG")
    message = f"the receiver of {spec.options.log} does not start; its log {log} ends with:\n{tail}"
    raise AgentError(message, "AGENT_UNREACHABLE")


def _patience(spec: Spec, process: subprocess.Popen[bytes] | None) -> float:
    """Return how long a receiver may take to start: what an object store has takes time to read."""
    runs = process is not None and process.poll() is None
    return STORED_START_SECONDS if runs and "://" in spec.options.log else START_SECONDS


def _start(spec: Spec, folder: Path) -> subprocess.Popen[bytes]:
    """Start the receiver in a session of its own, so that it outlives the driver."""
    from pyspark import cloudpickle

    with (folder / "receiver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "clonos._sources.receiver_main", str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=_children.environment(),
        )
    if process.stdin is not None:
        with process.stdin as pipe:
            pipe.write(cloudpickle.dumps(spec))  # type: ignore[no-untyped-call]
    return process


__all__ = [
    "HELD",
    "NO_PORT",
    "REFUSED",
    "TAKEN",
    "Spec",
    "address_of",
    "encrypts",
    "find",
    "find_or_start",
    "log_of",
    "prepare_folder",
    "secret_of",
]
