"""Columns and SQL functions, as far as Spark's public Python does not show them.

Private names of Spark, seen in 4.1, 4.2 and 4.3: ``Column._jc``, ``classic.ExpressionUtils``,
``_jsparkSession.expression``, ``RuntimeConf._jconf``, ``PythonSQLUtils.fn``,
``sessionState().functionRegistry()``, ``UDFRegistration.register``, ``QueryPlanningTracker``.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from clonos import _attached

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

MONTHS = ("interval year to month", "interval year", "interval month")


def is_client(spark: SparkSession | None) -> bool:
    """Whether a session is one of Spark Connect."""
    return spark is not None and not hasattr(spark, "_jsparkSession")


def active_session() -> SparkSession | None:
    """Return the session in which the program makes columns, if there is one."""
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    # A client may have its server in its own process, and that a classic session.
    if is_remote():
        return SparkSession.getActiveSession() or _session_of_clients()
    return SparkSession._instantiatedSession or SparkSession.getActiveSession()


def _session_of_clients() -> SparkSession | None:
    """Session of Spark Connect of this process, in threads that have made none too."""
    module: Any = sys.modules.get("pyspark.sql.connect.session")
    if module is None:
        return None
    attached = _attached.current()
    if attached is not None and is_client(attached.spark):
        return attached.spark
    of_process: SparkSession | None = module.SparkSession._get_default_session()
    return of_process


def udf_class() -> Any:
    """Return what PySpark makes of a function for the active session."""
    if is_client(active_session()):
        from pyspark.sql.connect.udf import UserDefinedFunction as ClientFunction

        return ClientFunction
    from pyspark.sql.udf import UserDefinedFunction

    return UserDefinedFunction


def settings(spark: SparkSession) -> str:
    """All settings that were given a value, as text: in one round trip."""
    if is_client(spark):
        return str(sorted(dict(spark.conf.getAll).items()))
    jconf: Any = spark.conf._jconf
    return str(jconf.getAll().mkString("\n"))


def readable(column: Any) -> tuple[Any, str | None]:
    """Column that Arrow can carry to Python, and its Spark type as JSON if Arrow loses it.

    A type is known where `column` is of a certain frame, or of SQL; not where it is a name that is
    looked up later. Intervals of months become their number, which is what Spark's pickled UDFs
    are given.
    """
    if not hasattr(column, "_jc"):
        return column, None
    expression = _expression(column._jc)
    if not expression.resolved():
        return column, None
    kind = expression.dataType().json()
    if kind.strip('"') in MONTHS:
        return column.cast("interval month").cast("int"), None
    return column, kind if '"udt"' in kind else None


def register_function(
    spark: SparkSession, name: str, call: Callable[..., Column], plain: Any, names: bool
) -> None:
    """Register a SQL function of a session; `call` makes its column when a query is analysed.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session.
    name : str
        Name in SQL.
    call : callable
        Given the place of a call, and its columns, by position and by name. Calls over the same
        columns of a query have one place: Spark compares functions, as in GROUP BY.
    plain : pyspark.sql.udf.UserDefinedFunction
        The same function as Spark knows it. It refuses calls that bind no function.
    names : bool
        Whether columns may be passed by name.
    """
    from pyspark.java_gateway import ensure_callback_server_started

    context: Any = spark.sparkContext
    start: Any = ensure_callback_server_started
    start(context._gateway)
    # As Spark does it, so that what it checks of a name and a type is checked.
    jspark: Any = spark._jsparkSession
    jspark.udf().registerPython(name, plain._judf)
    # What is replaced is warned of, and that was.
    jspark.sessionState().catalog().dropTempFunction(name, True)
    registry = jspark.sessionState().functionRegistry()
    registry.createOrReplaceTempFunction(
        name, _Builder(jspark, name, call, plain, names), "python_udf"
    )


class _Builder:
    """Scala function from the arguments of a call in SQL to its expression."""

    def __init__(
        self, jspark: Any, name: str, call: Callable[..., Column], plain: Any, names: bool
    ) -> None:
        self._jspark = jspark
        self._name = name
        self._call = call
        self._plain = plain
        self._names = names
        self._places = _Places()

    def apply(self, expressions: Any) -> Any:
        """Return the expression of one call; the analyser asks once per place of a query."""
        passed = [expressions.apply(index) for index in range(expressions.size())]
        args: list[Column] = []
        kwargs: dict[str, Column] = {}
        for one in passed:
            if one.getClass().getSimpleName() != "NamedArgumentExpression":
                if kwargs:
                    return self._refused(passed)
                args.append(column_of(one))
            elif one.key() in kwargs or not self._names:
                return self._refused(passed)
            else:
                kwargs[one.key()] = column_of(one.value())
        return _expression(self._call(self._places.of(passed), *args, **kwargs)._jc)

    def _refused(self, passed: Sequence[Any]) -> Any:
        """Call of the plain function, which Spark refuses with its own words when it resolves it.

        What is raised here would reach the user as a failure of a callback.
        """
        jvm = _jvm()
        name = f"clonos:{self._name}"
        self._jspark.udf().registerPython(name, self._plain._judf)
        columns = jvm.PythonUtils.toSeq([column_of(one)._jc for one in passed])
        return _expression(jvm.PythonSQLUtils.fn(name, columns))

    class Java:
        implements = ("scala.Function1",)


class _Places:
    """Tells the calls of a function apart, within a query and from one query to the next.

    Spark gives attributes ids: two tables in a query have two, whatever their columns are called,
    and the same table has others in the next query. So a place is what is called with which
    columns of which tables, and how many such places with other ids the query had before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By analysis and what is the same in the next one: what was asked, in order.
        self._asked: OrderedDict[tuple[int, str], list[str]] = OrderedDict()

    def of(self, arguments: Sequence[Any]) -> str:
        """Place of the call with these expressions."""
        asked = ", ".join(str(one.canonicalized().toString()) for one in arguments)
        columns = sorted(name for one in arguments for name in _columns_of(one))
        lasting = re.sub(r"#[0-9]+", "#", asked) + " over " + ", ".join(columns)
        with self._lock:
            known = self._asked.setdefault((_analysis(), lasting), [])
            if len(self._asked) > _ASKED_MAX:
                self._asked.popitem(last=False)
            if asked not in known:
                known.append(asked)
            return f"{lasting} {known.index(asked)}"


# Calls that are remembered, of the queries that are being analysed.
_ASKED_MAX = 256


def _columns_of(expression: Any) -> list[str]:
    attributes = expression.references().toSeq()
    # As typed they may be in any case.
    return [
        str(attributes.apply(index).qualifiedName()).lower() for index in range(attributes.size())
    ]


def _analysis() -> int:
    """What is another number for each query that the current thread analyses."""
    jvm = _jvm()
    tracker = jvm.org.apache.spark.sql.catalyst.QueryPlanningTracker.get()
    return int(jvm.System.identityHashCode(tracker.get())) if tracker.isDefined() else 0


def intercept_registration(kind: type, register: Callable[[Any, str, Any], Any]) -> None:
    """Have ``spark.udf.register`` hand functions of class `kind` to `register`.

    Spark would read the plain function out of them and register that.
    """
    from pyspark.sql.udf import UDFRegistration

    intercept(UDFRegistration, kind, register)


def intercept(owner: Any, kind: type, register: Callable[[Any, str, Any], Any]) -> None:
    """The same of one class of PySpark's; nothing if that is done."""
    original = owner.register
    # Pipelines put another in its place for a while.
    if getattr(original, "_clonos_kind", None) is kind:
        return

    @functools.wraps(original)
    def intercepting(self: Any, name: str, f: Any, returnType: Any = None) -> Any:
        if not isinstance(f, kind) or returnType is not None:
            return original(self, name, f, returnType)
        return register(self.sparkSession, name, f)

    intercepting._clonos_kind = kind  # type: ignore[attr-defined]
    owner.register = intercepting


def is_registering() -> bool:
    """Whether what calls our caller is the registration of Spark Connect's own."""
    return str(sys._getframe(2).f_globals.get("__name__")) == "pyspark.sql.connect.udf"


def _jvm() -> Any:
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    return context._jvm


def _expression(jcolumn: Any) -> Any:
    from pyspark.sql import SparkSession

    session: Any = SparkSession._instantiatedSession or SparkSession.getActiveSession()
    return session._jsparkSession.expression(jcolumn)


def column_of(expression: Any) -> Column:
    """Return the column that an expression of the JVM is."""
    from pyspark.sql.classic.column import Column as ClassicColumn

    utilities = getattr(_jvm(), "org.apache.spark.sql.classic.ExpressionUtils")
    return ClassicColumn(utilities.column(expression))
