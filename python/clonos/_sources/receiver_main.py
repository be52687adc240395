"""Main program of a receiver: one per log, held by a lock on the log's folder."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from clonos import _core
from clonos._sources.base import TIMESTAMP, ReceiverLog
from clonos._sources.receiver import HELD, NO_PORT, REFUSED, TAKEN, Spec, address_of, secret_of
from clonos.errors import ConfigError, SourceInUse

LOOK_SECONDS = 0.25
RESTART_SECONDS = (0.1, 10.0)
# Where this host is, of what is all of its addresses.
_OWN = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104


def main() -> None:
    """Receive until nobody has needed the log for a while."""
    import pickle

    folder = Path(sys.argv[1])
    spec: Spec = pickle.loads(sys.stdin.buffer.read())
    sys.stdin.close()
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Its owner is alive; whoever started us finds it.
        sys.exit(HELD)
    receiver = _start(spec, folder)
    told = {
        "addr": _reached_at(spec.options.reached_as, receiver.addr),
        "here": _here(receiver.addr),
        "pid": os.getpid(),
        "encrypt": spec.options.encrypt,
        "log": spec.options.log,
    }
    _write(folder / "receiver.json", told)
    log = ReceiverLog(receiver, _arrow_schema(spec))
    work = threading.Thread(
        target=_receive, args=(spec, receiver, log), name="receive", daemon=True
    )
    work.start()
    _serve(receiver, spec.options.linger)
    receiver.stop()
    work.join(timeout=10 * LOOK_SECONDS)
    # A receiver that does not look at `stopping` is not waited for.
    os._exit(0)


def _start(spec: Spec, folder: Path) -> _core.SourceReceiver:
    """Take the log, and listen to readers."""
    options = spec.options
    try:
        return _core.SourceReceiver.start(
            folder=str(folder),
            log=spec.location(),
            name=f"the receiver in process {os.getpid()} on {platform.node()}",
            reader=spec.reader,
            after=spec.after,
            secret=secret_of(folder),
            host=options.bind_host,
            ports=_ports(folder, options.ports),
            memory=options.memory,
            disk=options.disk,
            eager=options.eager,
            encrypt=options.encrypt,
        )
    except SourceInUse as error:
        # The last line: it is the error of whoever started us.
        sys.stderr.write(f"{error.message}\n")
        sys.exit(TAKEN)
    except ConfigError as error:
        sys.stderr.write(f"{error.message}\n")
        sys.exit(NO_PORT if error.message.startswith("ports") else REFUSED)


def _serve(receiver: _core.SourceReceiver, linger: float) -> None:
    """Return when nobody needs the receiver any more.

    One that has lost its log stays for its reader, which has to learn why: it would start another
    receiver, and take the log back, if this one were only gone.
    """
    lost = False
    while not receiver.is_idle(0.0 if lost else linger):
        try:
            receiver.fail()
        except SourceInUse as error:
            if not lost:
                sys.stderr.write(f"the receiver has lost its log and takes nothing more: {error}\n")
            lost = True
        time.sleep(LOOK_SECONDS)


def _receive(spec: Spec, receiver: _core.SourceReceiver, log: ReceiverLog) -> None:
    pause, most = RESTART_SECONDS
    while not receiver.stopping:
        begun = time.monotonic()
        try:
            spec.source.receive(log)
        except Exception:  # noqa: BLE001  whatever the user's receiver raises
            sys.stderr.write("the receiver failed and is called again:\n")
            traceback.print_exc()
        if time.monotonic() - begun > most:
            pause = RESTART_SECONDS[0]
        if not receiver.stopping:
            time.sleep(pause)
            pause = min(2 * pause, most)


def _arrow_schema(spec: Spec) -> Any:
    """Return the columns in the log: the time of receipt is the log's own."""
    from pyspark.sql.types import StructType

    from clonos._arrow_types import arrow_schema

    fields = spec.schema.fields
    if spec.options.timestamps and fields and fields[-1].name == TIMESTAMP:
        fields = fields[:-1]
    return arrow_schema(StructType(fields))


def _reached_at(host: str, addr: str) -> str:
    """Where executors reach the receiver that listens at `addr`."""
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{shown}:{addr.rpartition(':')[2]}" if host else addr


def _here(addr: str) -> str:
    """Where processes of this host reach it, whatever it is called outside."""
    host, _, port = addr.rpartition(":")
    return f"{_OWN.get(host, host)}:{port}"


def _ports(folder: Path, allowed: tuple[int, int]) -> list[int]:
    """Ports to try: the one of the receiver before first, as readers on their way know that one."""
    addr = address_of(folder)
    ports = list(range(allowed[0], allowed[1] + 1))
    before = [] if addr is None else [int(addr.rpartition(":")[2])]
    return [port for port in before if ports == [0] or port in ports] + ports


def _write(path: Path, value: dict[str, Any]) -> None:
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(value))
    fresh.replace(path)


if __name__ == "__main__":
    main()
