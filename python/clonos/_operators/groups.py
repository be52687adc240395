"""Kinds of functions on groups of rows: those that are causal, and what to use for the others."""

from __future__ import annotations

from typing import NoReturn

from clonos.errors import ConfigError

# Aggregates keep their own kind, by which Catalyst knows them. Names of `PythonEvalType`; those
# over iterators are not in each version of PySpark.
AGGREGATES = {
    "pandas_agg": "SQL_GROUPED_AGG_PANDAS_UDF",
    "pandas_agg_iter": "SQL_GROUPED_AGG_PANDAS_ITER_UDF",
    "arrow_agg": "SQL_GROUPED_AGG_ARROW_UDF",
    "arrow_agg_iter": "SQL_GROUPED_AGG_ARROW_ITER_UDF",
}
_ON_THE_FUNCTION = "put @causal on the plain function and give that to"
_INSTEAD = {
    "SQL_GROUPED_MAP_PANDAS_UDF": f"{_ON_THE_FUNCTION} df.groupBy(…).applyInPandas(fn, schema)",
    "SQL_GROUPED_MAP_PANDAS_ITER_UDF": (
        f"{_ON_THE_FUNCTION} df.groupBy(…).applyInPandas(fn, schema)"
    ),
    "SQL_GROUPED_MAP_ARROW_UDF": f"{_ON_THE_FUNCTION} df.groupBy(…).applyInArrow(fn, schema)",
    "SQL_GROUPED_MAP_ARROW_ITER_UDF": (
        f"{_ON_THE_FUNCTION} df.groupBy(…).applyInArrow(fn, schema)"
    ),
    "SQL_COGROUPED_MAP_PANDAS_UDF": f"{_ON_THE_FUNCTION} cogroup(…).applyInPandas(fn, schema)",
    "SQL_COGROUPED_MAP_ARROW_UDF": f"{_ON_THE_FUNCTION} cogroup(…).applyInArrow(fn, schema)",
    "SQL_MAP_PANDAS_ITER_UDF": f"{_ON_THE_FUNCTION} df.mapInPandas(fn, schema)",
    "SQL_MAP_ARROW_ITER_UDF": f"{_ON_THE_FUNCTION} df.mapInArrow(fn, schema)",
    "SQL_WINDOW_AGG_PANDAS_UDF": "declare an aggregate and put .over(window) behind its call",
    "SQL_WINDOW_AGG_ARROW_UDF": "declare an aggregate and put .over(window) behind its call",
}
_STATEFUL = (
    "its state is Spark's; call the service in a causal UDF before it, and pass on what it said"
)


def aggregate_kind(eval_type: int) -> str | None:
    """Return the kind of an aggregate of this `PythonEvalType`; ``None`` if it is no aggregate."""
    for kind, name in AGGREGATES.items():
        if _name(eval_type) == name:
            return kind
    return None


def refuse(eval_type: int) -> NoReturn:
    """Say what to use in place of a kind of function that cannot be causal.

    Raises
    ------
    ConfigError
        Always.
    """
    name = _name(eval_type)
    instead = _INSTEAD.get(name, _STATEFUL)
    message = f"a function declared {name} cannot be causal: {instead}"
    raise ConfigError(message, "CONFIG")


def _name(eval_type: int) -> str:
    from pyspark.util import PythonEvalType

    names = (name for name, number in vars(PythonEvalType).items() if number == eval_type)
    return next(names, f"of kind {eval_type}")
