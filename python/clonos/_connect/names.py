"""Functions that stand in SQL by name, which a server keeps as they were when they were registered.

They hold the settings of the session that was attached then, so each ``attach`` gives them anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from clonos._operators.columns import intercept
from clonos._operators.udf import CausalUDF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# By session: what is registered, as `udf` or `udtf` and under which name.
_named: WeakKeyDictionary[Any, dict[tuple[str, str], Any]] = WeakKeyDictionary()


def know_registered() -> None:
    """Have ``spark.udf.register`` and ``spark.udtf.register`` of clients know causal functions."""
    from pyspark.sql.connect.udf import UDFRegistration
    from pyspark.sql.connect.udtf import UDTFRegistration

    # Spark would register the plain function, which nothing records.
    intercept(UDFRegistration, CausalUDF, lambda of, name, fn: fn.register(of, name))
    owners: list[tuple[Any, str]] = [(UDFRegistration, "udf"), (UDTFRegistration, "udtf")]
    for owner, kind in owners:
        if not hasattr(owner.register, "_clonos_named"):
            owner.register = _remembering(owner.register, kind)


def _remembering(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def register(self: Any, name: str, f: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, name, f, *args, **kwargs)
        known = _named.setdefault(self.sparkSession, {})
        known.pop((kind, name), None)
        causal = getattr(f, "causal", f)
        if isinstance(causal, CausalUDF) or hasattr(causal, "_handler"):
            known[kind, name] = causal
        return made

    register._clonos_named = True  # type: ignore[attr-defined]
    return register


def register_again(spark: SparkSession) -> None:
    """Register what was registered in a session with the settings that are attached now."""
    for (kind, name), function in list(_named.get(spark, {}).items()):
        getattr(spark, kind).register(name, function)
