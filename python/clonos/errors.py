"""What can go wrong, as one short tree.

::

    ClonosError
    ├── ReplayDivergence      a new attempt did something else than was recorded
    ├── CausalLogLost         more was lost than ``sharing_depth`` and ``checkpoint_dir`` cover
    │   └── UpstreamChanged   a sender's log was lost, and it ran again with other outcomes
    ├── InputCutShort         an exchange's input ended before each sender's last frame
    ├── InconsistentEpoch     consumers of one epoch used different versions of a log
    ├── StateIncomplete       an epoch was run in part, so it does not decide keyed state
    ├── StateLost             more was lost than ``standbys`` and ``checkpoint_dir`` cover
    ├── Fenced                a newer attempt of the same task has taken over
    ├── SourceInUse           two queries, or two drivers, read one source's log
    ├── EpochFenced           two drivers write the epochs of one query
    ├── SinkUnreachable       a sink's server was away for too long (also a ConnectionError)
    ├── OperatorUsedTwice     two stages compute one column, and neither gets on
    ├── CorruptLog            bytes of a log that do not check out, or an unknown version
    ├── ResourceExhausted     ``memory`` or ``disk`` is used up, or a disk is full
    ├── ConfigError           a setting out of range (also a ValueError)
    ├── UnsupportedType       a column type that cannot be fingerprinted (also a TypeError)
    ├── ForkedProcess         a client carried over a fork (also a RuntimeError)
    ├── CallsOverlap          a call while another is awaited (also a RuntimeError)
    └── AgentError            an agent that cannot be reached (also a ConnectionError)
        ├── AuthRefused       wrong secret, or not an agent at all
        └── AgentTimeout      no answer in time (also a TimeoutError)

Every instance has ``condition``, a stable upper-case name that programs can test; the page
``docs/errors.md`` has a section for each. What is raised in one of Spark's workers arrives on the
driver as an exception of Spark's: `find` gives the one of Clonos in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = [
    "AgentError",
    "AgentTimeout",
    "AuthRefused",
    "CallsOverlap",
    "CausalLogLost",
    "ClonosError",
    "ConfigError",
    "CorruptLog",
    "EpochFenced",
    "Fenced",
    "ForkedProcess",
    "InconsistentEpoch",
    "InputCutShort",
    "NotRecordedWarning",
    "OperatorUsedTwice",
    "ReplayDivergence",
    "ResourceExhausted",
    "SinkUnreachable",
    "SourceInUse",
    "StateIncomplete",
    "StateLost",
    "UnsupportedType",
    "UpstreamChanged",
    "find",
]


class ClonosError(Exception):
    """Base of everything Clonos raises.

    Parameters
    ----------
    message : str
        What happened and what to do about it.
    condition : str
        Stable name of the condition, such as ``"REPLAY_DIVERGENCE"``.
    """

    def __init__(self, message: str, condition: str = "INTERNAL") -> None:
        super().__init__(message, condition)
        self.message = message
        self.condition = condition

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"


class ReplayDivergence(ClonosError):
    """Code or input changed since the log was recorded (DESIGN, guarantee 3)."""


class CausalLogLost(ClonosError):
    """No reachable agent and no checkpoint holds a log that had been published."""


class UpstreamChanged(CausalLogLost):
    """A sender's log was lost: what this task recorded belongs to inputs that are gone."""


class InputCutShort(ClonosError):
    """Spark ended a task's input early, as after a failed fetch; nothing was decided on it."""


class InconsistentEpoch(ClonosError):
    """Consumers of one epoch used different versions of a log: its results do not fit together."""


class StateIncomplete(ClonosError):
    """An epoch was run in part: some partitions did not say how they change keyed state."""


class StateLost(ClonosError):
    """Keyed state can be read nowhere any more, or not as it was when the query goes on."""


class Fenced(ClonosError):
    """A newer attempt of this task opened its log; this one must stop."""


class EpochFenced(ClonosError):
    """Another driver has written this epoch of this query, and it is still at work."""


class SinkUnreachable(ClonosError, ConnectionError):
    """The server of a sink could not be reached in time."""


class OperatorUsedTwice(ClonosError):
    """Two stages compute two columns in another order each, and each waits for the other."""


class SourceInUse(ClonosError):
    """Another query, or another driver on the same checkpoint, reads this source's log."""


class CorruptLog(ClonosError):
    """Bytes of a log failed their checksum, or were written by an unknown version."""


class ResourceExhausted(ClonosError):
    """A memory or disk budget is used up; the message names the setting."""


class ConfigError(ClonosError, ValueError):
    """A setting was refused; the message names it."""


class UnsupportedType(ClonosError, TypeError):
    """A column has a type that Clonos cannot fingerprint."""


class ForkedProcess(ClonosError, RuntimeError):
    """A client was used in another process than the one that made it."""


class CallsOverlap(ClonosError, RuntimeError):
    """`clonos.call` was used while another was awaited: replay could not tell which was which."""


class AgentError(ClonosError, ConnectionError):
    """An agent could not be reached, or went away."""


class AuthRefused(AgentError):
    """The other side does not hold this application's secret."""


class AgentTimeout(AgentError, TimeoutError):
    """An agent did not answer within ``io_timeout``."""


# As a traceback ends: the class, and what ``str`` of it gives.
_RAISED = re.compile(r"\bclonos\.errors\.(\w+): \[([A-Z_]+)\] (.*)")


class NotRecordedWarning(UserWarning):
    """Something causal is used where nothing records it; the text says what to do."""


def find(exc: BaseException | None) -> ClonosError | None:
    """Return the error of Clonos that an exception of Spark's is about.

    Parameters
    ----------
    exc : BaseException
        What an action raised, what ``StreamingQuery.exception()`` returned, or what was raised
        from either.

    Returns
    -------
    ClonosError or None
        The error, with its ``condition``; its ``__cause__`` is what it was found in. ``None`` if
        Clonos has nothing to do with it.

    Examples
    --------
    >>> import clonos
    >>> try:
    ...     df.write.save()  # doctest: +SKIP
    ... except Exception as exc:
    ...     error = clonos.errors.find(exc)
    ...     if error is not None and error.condition == "CAUSAL_LOG_LOST":
    ...         run_again()
    ...     else:
    ...         raise
    """
    for link in _chain(exc):
        if isinstance(link, ClonosError):
            return link
        raised = _RAISED.findall(_text(link))
        if raised:
            # The last one is what came out; those before it are what it was raised from.
            name, condition, message = raised[-1]
            kind = globals().get(name)
            if isinstance(kind, type) and issubclass(kind, ClonosError):
                found = kind(message.strip(), condition)
                found.__cause__ = link
                return found
    return None


def _chain(exc: BaseException | None) -> Iterator[BaseException]:
    """`exc` and what it was raised from, each once."""
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        yield exc
        exc = exc.__cause__ or exc.__context__


def _text(exc: BaseException) -> str:
    """What Spark says, the worker's traceback with it; empty if it says nothing any more."""
    try:
        return str(exc)
    except Exception:  # noqa: BLE001, the JVM that would say it may be gone
        return ""
