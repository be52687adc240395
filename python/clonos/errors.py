"""What can go wrong, as one short tree.

::

    ClonosError
    ├── ReplayDivergence      a new attempt did something else than was recorded
    ├── CausalLogLost         more was lost than ``sharing_depth`` and ``checkpoint_dir`` cover
    │   └── UpstreamChanged   a sender's log was lost, and it ran again with other outcomes
    ├── InputCutShort         an exchange's input ended before each sender's last frame
    ├── InconsistentEpoch     consumers of one epoch used different versions of a log
    ├── Fenced                a newer attempt of the same task has taken over
    ├── SourceInUse           two queries, or two drivers, read one source's log
    ├── EpochFenced           two drivers write the epochs of one query
    ├── SinkUnreachable       a sink's server was away for too long (also a ConnectionError)
    ├── OperatorUsedTwice     two uses of one operator in one task: give each a ``uid``
    ├── CorruptLog            bytes of a log that do not check out, or an unknown version
    ├── ResourceExhausted     ``memory`` or ``disk`` is used up, or a disk is full
    ├── ConfigError           a setting out of range (also a ValueError)
    ├── UnsupportedType       a column type that cannot be fingerprinted (also a TypeError)
    ├── ForkedProcess         a client carried over a fork (also a RuntimeError)
    └── AgentError            an agent that cannot be reached (also a ConnectionError)
        ├── AuthRefused       wrong secret, or not an agent at all
        └── AgentTimeout      no answer in time (also a TimeoutError)

Every instance has ``condition``, a stable upper-case name that programs can test.
"""

from __future__ import annotations

__all__ = [
    "AgentError",
    "AgentTimeout",
    "AuthRefused",
    "CausalLogLost",
    "ClonosError",
    "ConfigError",
    "CorruptLog",
    "EpochFenced",
    "Fenced",
    "ForkedProcess",
    "InconsistentEpoch",
    "InputCutShort",
    "OperatorUsedTwice",
    "ReplayDivergence",
    "ResourceExhausted",
    "SinkUnreachable",
    "SourceInUse",
    "UnsupportedType",
    "UpstreamChanged",
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


class Fenced(ClonosError):
    """A newer attempt of this task opened its log; this one must stop."""


class EpochFenced(ClonosError):
    """Another driver has written this epoch of this query, and it is still at work."""


class SinkUnreachable(ClonosError, ConnectionError):
    """The server of a sink could not be reached in time."""


class OperatorUsedTwice(ClonosError):
    """One operator was used twice in a task; ``with_uid`` tells the uses apart."""


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


class AgentError(ClonosError, ConnectionError):
    """An agent could not be reached, or went away."""


class AuthRefused(AgentError):
    """The other side does not hold this application's secret."""


class AgentTimeout(AgentError, TimeoutError):
    """An agent did not answer within ``io_timeout``."""
