"""Marks of rows: what tells rows with equal arguments apart where Spark puts them in another order.

`RowMarks.java` is a rule of Spark's optimizer. It stands in the sessions whose columns have causal
functions with an answer per row.

Private names of Spark, seen in 4.1, 4.2 and 4.3: ``_jsparkSession.experimental``,
``UserDefinedFunction._judf.func``, and what the rule imports.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from clonos._driver import compiled, spark_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.udf import UserDefinedFunction

_log = logging.getLogger("clonos")


class RowMarks:
    """The rule of one application, compiled when the first function needs it.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The attached session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._attached: list[SparkSession] = []
        self._lock = threading.Lock()
        self._rule: Any = None
        self._failed = False
        # Sessions that have the rule, by what tells them apart.
        self._in: dict[str, SparkSession] = {}

    def add(self, function: UserDefinedFunction, *, takes_marks: bool) -> None:
        """Note what a causal function is, before a column is made of it.

        Where Spark is one whose rules cannot be added to, functions are given no marks, and a
        warning says so, once.
        """
        with self._lock:
            if self._failed or (self._rule is None and not takes_marks):
                return
            # Pickled here for the first time: what cannot be is no fault of Spark's.
            judf: Any = function._judf
            try:
                if self._rule is None:
                    helpers = ("Changing", "Keys")
                    self._rule = compiled.made(self._spark, "RowMarks", uses=helpers)
                for spark in (*self._attached, self._active()):
                    self._stand_in(spark)
                self._rule.add(judf.func(), takes_marks)
            except Exception as error:
                if not spark_private.is_running(self._spark):
                    raise
                self._failed = True
                _log.warning(
                    "this Spark takes no rule for its optimizer, so rows with equal arguments are "
                    "not told apart behind a shuffle: give row_key= where answers differ (%s)",
                    error,
                )

    def join(self, spark: SparkSession) -> None:
        """Let another session of the application have the rule, as soon as there is one."""
        with self._lock:
            self._attached.append(spark)
            if self._rule is not None and not self._failed:
                self._stand_in(spark)

    def _active(self) -> SparkSession:
        """Session that the current thread builds queries in: a stream's batches have another."""
        from pyspark.sql import SparkSession

        return SparkSession.getActiveSession() or self._spark

    def _stand_in(self, spark: SparkSession) -> None:
        name = spark_private.session_name(spark)
        if name in self._in:
            return
        methods = _experimental(spark)
        rules = methods.extraOptimizations()
        if not rules.contains(self._rule):
            _set_rules(methods, rules.appended(self._rule))
        self._in[name] = spark

    def end(self) -> None:
        """Take the rule out of all sessions."""
        with self._lock:
            sessions, self._in = list(self._in.values()), {}
            for spark in sessions:
                # Of a Spark that was stopped nothing is left to be taken back.
                with contextlib.suppress(Exception):
                    self._leave(spark)

    def _leave(self, spark: SparkSession) -> None:
        methods = _experimental(spark)
        rules = methods.extraOptimizations()
        ours = rules.indexOf(self._rule)
        if ours >= 0:
            _set_rules(methods, rules.patch(ours, rules.empty(), 1))


def _experimental(spark: SparkSession) -> Any:
    jspark: Any = spark._jsparkSession
    return jspark.experimental()


def _set_rules(methods: Any, rules: Any) -> None:
    # The name of a Scala setter.
    getattr(methods, "extraOptimizations_$eq")(rules)
