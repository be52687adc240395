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
    """The rule of one application.

    It stands in the attached session from the beginning: a stream runs in a copy of the session
    that it was started in, and may make its first causal column in a batch function.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The attached session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._rule: Any = None
        self._failed: Exception | None = None
        self._is_told = False
        # Sessions that have the rule, by what tells them apart.
        self._in: dict[str, SparkSession] = {}
        try:
            self._rule = compiled.made(spark, "RowMarks", uses=("Changing", "Keys"))
            self._stand_in(spark)
        except Exception as error:
            if not spark_private.is_running(spark):
                raise
            self._failed = error

    def add(self, function: UserDefinedFunction, *, takes_marks: bool) -> None:
        """Note what a causal function is, before a column is made of it.

        Where Spark is one whose rules cannot be added to, functions are given no marks, and a
        warning says so, once.
        """
        with self._lock:
            if self._failed is None:
                # Pickled here for the first time: what cannot be is no fault of Spark's.
                judf: Any = function._judf
                try:
                    self._stand_in(self._active())
                    self._rule.add(judf.func(), takes_marks)
                except Exception as error:
                    if not spark_private.is_running(self._spark):
                        raise
                    self._failed = error
            if self._failed is not None and takes_marks and not self._is_told:
                self._is_told = True
                _log.warning(
                    "this Spark takes no rule for its optimizer, so rows with equal arguments are "
                    "not told apart behind a shuffle: give row_key= where answers differ (%s)",
                    self._failed,
                )

    def join(self, spark: SparkSession) -> None:
        """Let another session of the application have the rule."""
        with self._lock:
            if self._failed is None:
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
