"""What travels to the workers of an operator on whole partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class OperatorSpec:
    """An operator: `name` is its ``uid``, `label` what people call it.

    `config` is the serialised session configuration, or ``None`` where nothing is recorded.
    """

    name: str
    label: str
    code: int
    config: bytes | None


@dataclass(frozen=True)
class Ends:
    """What a task has at its two ends; travels to the workers.

    `sender`: operator that sends it frames, or ``None`` for rows. `schema`: Arrow schema of what it
    sends on, or ``None`` if it hands rows to Spark; `keys`: indices of the key columns in it.
    """

    sender: str | None
    schema: pa.Schema | None = None
    keys: tuple[int, ...] = ()
    partitions: int = 0
