"""What a user reads when his function fails: what he would read of a plain one."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.functions import udf

from clonos import causal
from clonos.errors import ConfigError

pytestmark = pytest.mark.timeout(480)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

FLAVOURS: list[Callable[[Any], Any]] = [
    causal("long", per="row"),
    lambda fn: causal(udf(fn, "long")),
    causal("long", retries=1),
]


def missing(row: int) -> int:
    raise ValueError(f"no {row}")


def failing(row: int) -> int:
    return missing(row)


def leaving(row: int) -> int:
    sys.exit(3)


def stopping(row: int) -> int:
    return next(iter([]))


def said(spark: Any, made: Any) -> str:
    with pytest.raises(Exception, match="Traceback") as caught:
        spark.range(1).select(made("id")).collect()
    return str(caught.value)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_tracebacks_have_the_users_lines_only(spark: Any, session: Any, flavour: Any) -> None:
    for fn, last in ((failing, "ValueError: no 0"), (leaving, "SystemExit: 3")):
        text, plain = said(spark, flavour(fn)), said(spark, udf(fn, "long"))
        lines = [line.strip() for line in text.splitlines() if line.strip().startswith("File ")]
        assert lines == [line.strip() for line in plain.splitlines() if " in " in line], text
        # Spark Connect adds a line of its own.
        told = [line for line in text.splitlines() if not line.startswith(" SQLSTATE")]
        assert told[-1].strip().startswith(last), text


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_function_that_stops_an_iteration_is_named(
    spark: Any, session: Any, flavour: Any
) -> None:
    text = said(spark, flavour(stopping))
    assert "[STOP_ITERATION_OCCURRED]" in text
    assert "stopping, line" in text
    assert "test_failing.py" in text


@pytest.mark.classic
def test_what_cannot_be_sent_is_an_error_as_pysparks(spark: Any, session: Any) -> None:
    lock = threading.Lock()

    def locked(row: int) -> int:
        with lock:
            return row

    with pytest.raises(pickle.PicklingError, match="setup=make_client") as caught:
        spark.range(1).select(causal("long", per="row")(locked)("id"))
    assert isinstance(caught.value, ConfigError)

    def nested(row: int) -> int:
        return int(spark.range(row).count())

    with pytest.raises(pickle.PicklingError, match=r"SPARK|ONLY_VALID") as caught:
        spark.range(1).select(causal("long", per="row")(nested)("id"))
    assert "setup=" not in str(caught.value)
    assert ".." not in str(caught.value)
