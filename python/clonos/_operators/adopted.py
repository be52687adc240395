"""UDFs of PySpark's own that become causal functions where ``attach`` was told to adopt them."""

from __future__ import annotations

import warnings
from typing import Any

from clonos._operators.declaration import check_recordable, kinds
from clonos._operators.udf import CausalUDF, causal
from clonos.errors import NotRecordedWarning


class AdoptedUDF(CausalUDF[..., Any]):
    """A causal function of a program that knows of PySpark alone."""

    _is_adopted = True

    def asNondeterministic(self) -> AdoptedUDF:
        """Declare this very function nondeterministic, as PySpark does, and return it."""
        self.__dict__.update(super().asNondeterministic().__dict__)
        return self


def adopted(plain: Any) -> Any:
    """Return a causal function in the place of a UDF that PySpark has made, or that if it stays.

    Scalar kinds are adopted. Functions of PySpark's own modules are not: pandas on Spark makes
    some, and puts them where Spark takes none that is nondeterministic.
    """
    made_by = getattr(plain, "_unwrapped", None)
    if made_by is None or plain.evalType not in kinds():
        return plain
    module = getattr(plain.func, "__module__", None) or ""
    # One that was translated into Spark's own expressions is no function any more.
    if module.split(".")[0] == "pyspark" or getattr(made_by, "transpiled", None):
        return plain
    if not _is_recordable(plain):
        return plain
    return AdoptedUDF(plain, None, causal(plain)._options)


def _is_recordable(plain: Any) -> bool:
    from pyspark.errors import PySparkNotImplementedError

    try:
        check_recordable(plain.returnType, plain.__name__)
    except PySparkNotImplementedError as reason:
        message = f"a UDF stays plain, and is not recorded: {reason}"
        warnings.warn(message, NotRecordedWarning, stacklevel=6)
        return False
    return True
