"""What `attach(adopt=…)` replaces, and that it gives all of it back."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import SparkContext, cloudpickle
from pyspark.sql import udf as row_functions
from pyspark.sql.pandas import functions as vectorised
from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.udf import UDFRegistration

from clonos._config import ADOPTABLE, parse_adopt
from clonos._driver.adopt import Adoption
from clonos._operators.state import LARGE_BYTES, StatefulStage
from clonos.errors import ConfigError


def replaceable() -> list[Any]:
    return [
        SparkContext.stop,
        PandasGroupedOpsMixin.transformWithState,
        PandasGroupedOpsMixin.transformWithStateInPandas,
        vars(row_functions)["_create_udf"],
        vars(vectorised)["_create_udf"],
        UDFRegistration.register,
        DataStreamWriter.foreachBatch,
    ]


def test_names_are_read() -> None:
    assert parse_adopt(()) == ()
    assert parse_adopt("udf") == ("udf",)
    assert parse_adopt(["transformWithState", "udf", "udf"]) == ADOPTABLE
    for wrong in ("udtf", ["udf", "x"], [3], 3, b"udf"):
        with pytest.raises(ConfigError, match="'udf', 'transformWithState'"):
            parse_adopt(wrong)


def test_all_is_given_back() -> None:
    before = replaceable()
    for names, count in (((), 2), (("udf",), 5), (("transformWithState",), 4), (ADOPTABLE, 7)):
        adoption = Adoption(names)
        after = replaceable()
        assert sum(one is not other for one, other in zip(before, after, strict=True)) == count
        adoption.end()
        adoption.end()
        assert replaceable() == before


def test_who_stops_spark_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_context: Any) -> None:
        raise OSError

    monkeypatch.setattr(SparkContext, "stop", fails)
    before = replaceable()
    Adoption(ADOPTABLE)
    with pytest.raises(OSError):
        SparkContext.stop(object())  # type: ignore[arg-type]
    assert replaceable() == before


def test_all_is_given_back_if_something_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(UDFRegistration, "register")
    before = [SparkContext.stop, vars(row_functions)["_create_udf"]]
    with pytest.raises(KeyError, match="register"):
        Adoption(("udf",))
    assert [SparkContext.stop, vars(row_functions)["_create_udf"]] == before


def test_what_somebody_put_over_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    adoption = Adoption(("udf",))
    ours = UDFRegistration.register
    asked: list[str] = []

    def theirs(self: Any, name: str, f: Any, returnType: Any = None) -> Any:
        asked.append(name)
        return ours(self, name, f, returnType)

    monkeypatch.setattr(UDFRegistration, "register", theirs)
    adoption.end()
    assert UDFRegistration.register is theirs
    # Spark's own, which looks for the session that there is not.
    with pytest.raises(AttributeError, match="sparkSession"):
        UDFRegistration.register(object(), "f", lambda n: n)  # type: ignore[arg-type]
    assert asked == ["f"]


class Sent:
    """A broadcast, which travels without what it holds."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Context:
    broadcast = Sent


@pytest.mark.parametrize("size", [1, 2 * LARGE_BYTES])
def test_what_a_plan_says_of_an_operator_is_small(size: int) -> None:
    """Spark would send it apart, with the mark by which the registry finds its place."""
    program: Any = {"held": bytes(size)}
    context: Any = Context()
    stage = StatefulStage(program, context)
    assert stage.sent() == program
    dumps: Any = cloudpickle.dumps
    assert len(dumps(StatefulStage(program, context))) < LARGE_BYTES
    assert len(dumps(stage)) < LARGE_BYTES
