"""What a function was declared as: its kind, its result's type, its names, as PySpark has them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clonos._arrow_types import arrow_type
from clonos._operators.columns import active_session, is_client, settings
from clonos._operators.groups import AGGREGATES, aggregate_kind, refuse
from clonos._worker.task_conf import DEFAULTS, TaskConf

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

ROW, ASYNC, ARROW, ARROW_ITER, PANDAS, PANDAS_ITER = (
    "row",
    "async",
    "arrow",
    "arrow_iter",
    "pandas",
    "pandas_iter",
)
# Words in annotations of functions that PySpark takes for vectorised ones.
VECTORISED = ("Series", "DataFrame", "Array")


def check_type(declared: Any) -> None:
    """Refuse what is no type of a result, as PySpark does."""
    if declared is None or isinstance(declared, str):
        return
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.types import DataType

    if not isinstance(declared, DataType):
        raise PySparkTypeError(
            errorClass="NOT_EXPECTED_TYPE",
            messageParameters={
                "expected_type": "DataType or str",
                "arg_name": "returnType",
                "arg_type": type(declared).__name__,
            },
        )


@dataclass(frozen=True)
class Declaration:
    """A function as it was declared.

    Parameters
    ----------
    func : callable
        The plain function.
    kind : str
    declared_type : DataType or str
        Type of a result, or its DDL.
    name : str
        What the column is called.
    deterministic : bool
    row_eval_type : int, optional
        Of a row function, whether Spark would pickle rows or take them as Arrow; ``None``: as
        ``spark.sql.execution.pythonUDF.arrow.enabled`` says.
    """

    func: Callable[..., Any]
    kind: str
    declared_type: Any
    name: str
    deterministic: bool = True
    row_eval_type: int | None = None

    def eval_type(self) -> int:
        """Spark's number for this kind."""
        from pyspark.util import PythonEvalType

        if self.kind in AGGREGATES:
            number: int = getattr(PythonEvalType, AGGREGATES[self.kind])
            return number
        if self.kind in (ROW, ASYNC):
            return _row_eval_type() if self.row_eval_type is None else self.row_eval_type
        return next(number for number, kind in kinds().items() if kind == self.kind)

    def run_eval_type(self) -> int:
        """Spark's number for what runs in place of the function."""
        from pyspark.util import PythonEvalType

        # Catalyst knows aggregates by theirs; the others see whole partitions, batch by batch.
        in_place = self.kind in AGGREGATES
        return self.eval_type() if in_place else PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF

    def pickled(self) -> bool:
        """Whether Spark would send pickled rows to the plain function."""
        from pyspark.util import PythonEvalType

        return self.eval_type() == PythonEvalType.SQL_BATCHED_UDF

    def return_type(self) -> DataType:
        """Spark type of a result, checked for this kind."""
        from pyspark.sql.types import DataType
        from pyspark.sql.udf import UserDefinedFunction

        declared = self.declared_type
        kind = declared if isinstance(declared, DataType) else _parsed(declared)
        UserDefinedFunction._check_return_type(kind, self.eval_type())
        return kind

    def plain(self, name: str) -> Any:
        """Return the function as PySpark's own UDF, under another name."""
        from pyspark.sql.udf import UserDefinedFunction

        kind, number = self.return_type(), self.eval_type()
        return UserDefinedFunction(self.func, returnType=kind, name=name, evalType=number)


def read_ahead(declared: Any) -> None:
    """Have a client's server read a type now, as functions of pipelines may not ask it to."""
    if isinstance(declared, str) and is_client(active_session()):
        # What is wrong is told where it is used.
        with contextlib.suppress(Exception):
            _parsed(declared)


def _parsed(declared: str) -> DataType:
    """Type that a DDL text means under the session's settings; Spark's JVM parses it."""
    session = active_session()
    return _parsed_under(declared, "" if session is None else settings(session))


@functools.lru_cache(maxsize=256)
def _parsed_under(declared: str, _settings: str) -> DataType:
    from pyspark.sql.types import _parse_datatype_string

    return _parse_datatype_string(declared)


def check_recordable(returned: DataType, name: str) -> None:
    """Refuse a result that Arrow has no type for, with the advice that Spark gives.

    Raises
    ------
    PySparkNotImplementedError
    """
    from pyspark.errors import PySparkNotImplementedError

    try:
        arrow_type(returned)
    except TypeError as reason:
        message = (
            f"{name} returns {returned.simpleString()}: Arrow has no such type, so it cannot be "
            "recorded. Please use a different output data type for your UDF or DataFrame."
        )
        raise PySparkNotImplementedError(message) from reason


def declaration_of(fn: Any, return_type: Any) -> Declaration:
    """Read what `fn` was declared as: a plain or coroutine function, or one of PySpark's UDFs.

    Parameters
    ----------
    fn : callable
    return_type : DataType or str, optional
        Type of a result; default: what a UDF says, or ``"string"``.

    Raises
    ------
    ConfigError
        If it is a UDF of a kind that cannot be causal.
    """
    if isinstance(fn, Declaration):
        return fn
    if not (hasattr(fn, "evalType") and hasattr(fn, "func")):
        declared = "string" if return_type is None else return_type
        kind = ASYNC if inspect.iscoroutinefunction(fn) else _hinted_kind(fn)
        return Declaration(fn, kind, declared, getattr(fn, "__name__", type(fn).__name__))
    known = kinds().get(fn.evalType) or aggregate_kind(fn.evalType)
    if known is None:
        refuse(fn.evalType)
    kind = known
    if kind == ROW and inspect.iscoroutinefunction(fn.func):
        kind = ASYNC
    own = getattr(fn, "_unwrapped", fn)
    return Declaration(
        func=fn.func,
        kind=kind,
        # As it was written: reading a DDL string takes a session, which there may not be yet.
        declared_type=own._returnType if return_type is None else return_type,
        name=own._name,
        deterministic=fn.deterministic,
        row_eval_type=fn.evalType if kind in (ROW, ASYNC) else None,
    )


def kinds() -> dict[int, str]:
    """Scalar kinds, by Spark's numbers."""
    from pyspark.util import PythonEvalType

    return {
        PythonEvalType.SQL_BATCHED_UDF: ROW,
        PythonEvalType.SQL_ARROW_BATCHED_UDF: ROW,
        PythonEvalType.SQL_SCALAR_PANDAS_UDF: PANDAS,
        PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF: PANDAS_ITER,
        PythonEvalType.SQL_SCALAR_ARROW_UDF: ARROW,
        PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF: ARROW_ITER,
    }


def _hinted_kind(fn: Any) -> str:
    """Kind that PySpark's ``udf`` takes from a function's type hints."""
    hints = getattr(fn, "__annotations__", {})
    if not any(word in str(hint) for hint in hints.values() for word in VECTORISED):
        return ROW
    from pyspark.errors import PySparkException

    try:
        from pyspark.sql.pandas.typehints import infer_eval_type_for_udf

        number = infer_eval_type_for_udf(fn)
    except (ImportError, NameError, TypeError, ValueError, PySparkException):
        # PySpark too goes by rows where it cannot make out the hints.
        return ROW
    if number is None:
        return ROW
    return kinds().get(number) or aggregate_kind(number) or ROW


def _row_eval_type() -> int:
    from pyspark.util import PythonEvalType

    session = active_session()
    setting = "spark.sql.execution.pythonUDF.arrow.enabled"
    if session is not None and session.conf.get(setting) == "true":
        return PythonEvalType.SQL_ARROW_BATCHED_UDF
    return PythonEvalType.SQL_BATCHED_UDF


def session_conf() -> TaskConf:
    """Settings of the active session that decide how values are converted."""
    session = active_session()
    return DEFAULTS if session is None else _conf_under(settings(session))


@functools.lru_cache(maxsize=64)
def _conf_under(_settings: str) -> TaskConf:
    from pyspark.errors import PySparkException

    session = active_session()
    if session is None:
        return DEFAULTS

    def setting(name: str) -> str | None:
        try:
            return session.conf.get(name)
        except PySparkException:
            # Not every version that we run on has it.
            return None

    return DEFAULTS.changed(setting)


def hook_registration(kind: type) -> None:
    """Have ``spark.udf.register`` know causal functions, where there is a PySpark."""
    if importlib.util.find_spec("pyspark") is None:
        return
    from clonos._operators.columns import intercept_registration

    intercept_registration(kind, lambda spark, name, function: function.register(spark, name))


def is_udtf(fn: Any) -> bool:
    """Whether `fn` is what ``pyspark.sql.functions.udtf`` makes, classic or for Connect."""
    # By name: Connect's may not be importable, and a scalar function too may be made of a class.
    return type(fn).__name__ == "UserDefinedTableFunction"
