"""State variables as a processor declares them in ``init``; they travel to the workers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

from clonos._arrow_types import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Kind = Literal["value", "list", "map"]


class TimeMode(Enum):
    """What timers and TTL go by, with Spark's names of it."""

    NONE = "NoTime"
    PROCESSING_TIME = "ProcessingTime"
    EVENT_TIME = "EventTime"


TIME_MODES = {
    "none": TimeMode.NONE,
    "processingtime": TimeMode.PROCESSING_TIME,
    "eventtime": TimeMode.EVENT_TIME,
}


@dataclass(frozen=True)
class Variable:
    """A state variable: `user_keys` is the schema of a map's keys, `ttl_ms` 0 without a TTL."""

    name: str
    kind: Kind
    user_keys: StructType | None
    values: StructType
    ttl_ms: int

    def for_core(self) -> tuple[str, str, pa.Schema | None, pa.Schema, int]:
        """Return it as the core takes it."""
        keys = None if self.user_keys is None else arrow_schema(self.user_keys)
        return self.name, self.kind, keys, arrow_schema(self.values), self.ttl_ms
