"""Requests to the host process, by whatever way they reach it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from clonos import errors
from clonos._connect.answering import pass_on
from clonos.errors import ClonosError, ConfigError

ID_BYTES = 16


@dataclass(frozen=True)
class HostProcess:
    """A host process; `folder` is where it listens, `process` tells it from the ones before."""

    folder: str
    process: str

    def ask(self, send: Callable[[dict[str, Any]], dict[str, Any]], what: str, *of: Any) -> Any:
        """Ask for as long as it takes.

        Parameters
        ----------
        send : callable
            Carries a request there, and the answer back. Both are JSON.
        what : str
            Name of the answer, of `Host`.
        *of
            Its arguments.

        Raises
        ------
        AgentError
            If that process is there no more.
        ClonosError
            What the answer is.
        """
        request = {
            "folder": self.folder,
            "process": self.process,
            "id": secrets.token_hex(ID_BYTES),
            "what": what,
            "arguments": of,
        }
        while True:
            told = send(request)
            if "gone" in told:
                message = (
                    "the process of Clonos beside the Spark driver has ended, as it does with the "
                    f"server: call clonos.attach(spark) again ({told['gone']})"
                )
                raise errors.AgentError(message, "AGENT_UNREACHABLE")
            if "error" in told:
                raise_told(told)
            if "later" not in told:
                return told.get("answer")

    def ask_here(self, what: str, *of: Any) -> Any:
        """As `ask`, on its own host."""
        return self.ask(lambda request: pass_on(Path(self.folder), request), what, *of)


def raise_told(told: dict[str, Any]) -> NoReturn:
    """Raise the error that an answer is."""
    kind = getattr(errors, told.get("kind") or "", ConfigError)
    is_ours = isinstance(kind, type) and issubclass(kind, ClonosError)
    condition = told.get("condition") or "CONFIG"
    raise (kind if is_ours else ConfigError)(told["error"], condition)
