"""What travels to the workers of an operator on whole partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clonos._uses import Use

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class OperatorSpec:
    """A use of an operator; `label` is what people call it.

    `config` is the serialised session configuration, or ``None`` where nothing is recorded;
    `allow_code_change` says that a log by other code is replayed.
    """

    use: Use
    label: str
    config: bytes | None
    allow_code_change: bool = False

    @property
    def name(self) -> str:
        """Name of the operator: its ``uid``."""
        return self.use.operator


@dataclass(frozen=True)
class Ends:
    """What a task has at its two ends; travels to the workers.

    `sender`: use of the operator that sends it frames, or ``None`` for rows. `schema`: Arrow schema
    of what it sends on, or ``None`` if it hands rows to Spark; `keys`: indices of the key columns.
    """

    sender: Use | None
    schema: pa.Schema | None = None
    keys: tuple[int, ...] = ()
    partitions: int = 0
