"""Exactly-once, locally recovered nondeterministic Python on Spark.

``attach`` a Spark session, put ``@causal`` on functions whose answers may differ from run to run,
and use the causal services where such code reads the clock, draws random numbers or calls out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clonos import errors
from clonos._services import (
    call,
    idempotency_key,
    now,
    numpy_rng,
    random,
    service,
    time,
    time_ns,
    token_bytes,
    uuid4,
)

if TYPE_CHECKING:
    from clonos import functions
    from clonos._driver.attach import attach
    from clonos._driver.session import Session
    from clonos._operators.exchange import exchange
    from clonos._operators.partitions import map_in_arrow, map_in_pandas, map_partitions
    from clonos._operators.state import transform_with_state
    from clonos._operators.udf import CausalUDF, causal
    from clonos._sources import ReplayableSource
    from clonos._state.batch_processor import BatchProcessor, GroupedRows, Handled

__version__ = "0.1.0"

__all__ = [
    "BatchProcessor",
    "CausalUDF",
    "GroupedRows",
    "Handled",
    "ReplayableSource",
    "Session",
    "attach",
    "call",
    "causal",
    "errors",
    "exchange",
    "functions",
    "idempotency_key",
    "map_in_arrow",
    "map_in_pandas",
    "map_partitions",
    "now",
    "numpy_rng",
    "random",
    "service",
    "time",
    "time_ns",
    "token_bytes",
    "transform_with_state",
    "uuid4",
]

# What needs PySpark is imported when it is first asked for: an agent's process never does.
_LAZY = {
    "BatchProcessor": "clonos._state.batch_processor",
    "CausalUDF": "clonos._operators.udf",
    "GroupedRows": "clonos._state.batch_processor",
    "Handled": "clonos._state.batch_processor",
    "ReplayableSource": "clonos._sources",
    "Session": "clonos._driver.session",
    "attach": "clonos._driver.attach",
    "causal": "clonos._operators.udf",
    "exchange": "clonos._operators.exchange",
    "map_in_arrow": "clonos._operators.partitions",
    "map_in_pandas": "clonos._operators.partitions",
    "map_partitions": "clonos._operators.partitions",
    "transform_with_state": "clonos._operators.state",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "functions":
        return import_module("clonos.functions")
    if name not in _LAZY:
        message = f"module 'clonos' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
