"""Plain functions that refer to causal ones: told apart, and the same when they are made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clonos import _attached, causal
from clonos._uses import function_identity
from clonos._worker.groups import make_aggregate
from clonos._worker.udf import make_body

cloudpickle = pytest.importorskip("pyspark.cloudpickle")


class Config:
    def to_bytes(self) -> bytes:
        return b"config"


@pytest.fixture(autouse=True)
def _attached_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_attached, "current_config", Config)


def helper(uid: str = "helper", more: int = 1) -> Any:
    return causal(uid=uid)(lambda x: x + more)


def adding(ask: Any, number: int = 1) -> Callable[..., Any]:
    return lambda x: ask(x) + number


def taking(ask: Any) -> Callable[..., Any]:
    return lambda x: ask(x) - 1


def identity(function: Any) -> str:
    return function_identity(cloudpickle.dumps((function, "string")))


def test_plain_functions_over_one_causal_function_are_told_apart() -> None:
    ask = helper()
    assert identity(adding(ask)) != identity(taking(ask))
    assert identity(adding(ask)) != identity(adding(ask, 2))
    assert identity(adding(ask)) != identity(adding(helper("other")))
    assert identity(adding(ask)) != identity(adding(helper(more=2)))
    assert identity(adding(adding(ask))) != identity(adding(taking(ask)))


def test_a_function_that_is_made_again_is_the_same() -> None:
    for made in (adding, taking, lambda ask: adding(adding(ask))):
        assert identity(made(helper())) == identity(made(helper()))
    nested = [causal(uid="outer")(adding(helper())) for _ in range(2)]
    assert identity(adding(nested[0])) == identity(adding(nested[1]))


def test_a_causal_function_is_its_operator_and_its_code() -> None:
    one, other = helper(), causal(uid="outer")(adding(helper()))
    assert identity(one).startswith("helper ")
    assert identity(other).startswith("outer ")
    assert identity(one) == identity(helper())


@pytest.mark.parametrize("make", [make_body, make_aggregate])
def test_what_runs_in_place_of_a_causal_function_is_causal(make: Any) -> None:
    def body() -> Any:
        outer = causal(uid="outer")(adding(helper()))
        spec = outer._spec(return_type="string", arguments=1, keyed=False)
        return make(spec, outer.func)

    assert identity(body()).startswith("outer ")
    assert identity(body()) == identity(body())
