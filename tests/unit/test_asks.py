"""Who may ask for an idempotency key, and who is sure not to."""

# ruff: noqa: PLW0108 - what a lambda names is looked at, not what it would be inlined to.

from __future__ import annotations

import collections
import enum
import functools
import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import clonos
from clonos import _asks, causal


def charge(x: Any) -> str:
    return f"{x} {clonos.idempotency_key()}"


class Client:
    """Pays in a method, which nobody names in a text."""

    __slots__ = ("how",)

    def __init__(self, how: Any = charge) -> None:
        self.how = how

    def pay(self, x: Any) -> str:
        return charge(x)


class Callable:
    def __call__(self, x: Any) -> str:
        return charge(x)


class Slotted:
    """Holds a function in a slot."""

    __slots__ = ("how",)

    def __init__(self, how: Any) -> None:
        self.how = how


class Ways(enum.Enum):
    PAY = functools.partial(charge)


class Holder:
    """Holds functions in a class."""

    by_name = types.MappingProxyType({"pay": charge})

    @functools.cached_property
    def key(self) -> str:
        return charge(1)

    @functools.singledispatchmethod
    def of_kind(self, x: Any) -> str:
        return str(x)

    @of_kind.register
    def _(self, x: int) -> str:
        return charge(x)


@functools.lru_cache
def cached(x: Any) -> str:
    return charge(x)


@functools.singledispatch
def of_kind(x: Any) -> str:
    return str(x)


@of_kind.register
def _(x: int) -> str:
    return charge(x)


def given(x: Any, *, pay: Any = charge) -> str:
    return str(pay(x))


def noted(x: Any) -> Any:
    return noted.pay(x)  # type: ignore[attr-defined]


noted.pay = charge  # type: ignore[attr-defined]

TABLE: dict[str, Any] = {"pay": charge}
NESTED: dict[str, Any] = {"ways": [(1, {"pay": charge})]}
ROW, DEQUE = [charge], collections.deque([charge])
MADE: Any = collections.defaultdict(lambda: charge)
LOOK_UP = TABLE.get
client, callables, slotted, holder = Client(), {"pay": Callable()}, Slotted([charge]), Holder()
own = types.ModuleType("of_the_program")
own.charge = charge  # type: ignore[attr-defined]
inner = types.ModuleType("of_the_program.inner")
own.inner = inner  # type: ignore[attr-defined]
inner.pay = charge  # type: ignore[attr-defined]


def in_closure() -> Any:
    ways = (charge,)
    return lambda x: ways[0](x)


def by_import(x: Any) -> Any:
    from asks_payments import pay

    return pay(x)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: TABLE["pay"](x),
        lambda x: NESTED["ways"][0][1]["pay"](x),
        lambda x: ROW[0](x),
        lambda x: DEQUE[0](x),
        lambda x: MADE[1](x),
        lambda x: LOOK_UP("pay")(x),
        in_closure(),
        lambda x: cached(x),
        cached,
        lambda x: of_kind(x),
        given,
        noted,
        functools.partial(lambda ways, x: ways["pay"](x), TABLE),
        functools.partial(lambda x, ways=(): ways[0](x), ways=[charge]),
        functools.partial(lambda client, x: client.pay(x), client),
        lambda x: getattr(client, "p" + "ay")(x),
        lambda x: getattr(own, "cha" + "rge")(x),
        lambda x: getattr(clonos, "idempotency" + "_key")() + x,
        lambda x: own.inner.pay(x),  # type: ignore[attr-defined]
        lambda x: globals()["charge"](x),
        lambda x: callables["pay"](x),
        lambda x: slotted.how[0](x),
        lambda x: Ways.PAY.value(x),
        lambda x: holder.by_name["pay"](x),
        lambda: holder.key,
        lambda x: holder.of_kind(x),
    ],
)
def test_who_holds_what_asks_may_ask(fn: Any) -> None:
    assert _asks.asks_for_keys(fn)


def test_what_is_imported_inside_may_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from clonos import idempotency_key\ndef pay(x): return idempotency_key()\n"
    (tmp_path / "asks_payments.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _asks.asks_for_keys(by_import)
    assert "asks_payments" not in sys.modules


NUMBERS, FRAME = np.arange(4), pd.DataFrame({"a": [1]})
WORDS = {str(n): {"at": n, "of": [n]} for n in range(200)}


class Model:
    """As a model that was loaded."""

    def __init__(self) -> None:
        self.weights = [NUMBERS, [1.0, 2.0]]
        self.name_of = {"a": str.upper}

    def predict(self, rows: Any) -> Any:
        return np.dot(rows, self.weights[0])


model = Model()


def by_request(url: str) -> Any:
    import httpx

    return httpx.get(url).json()


@pytest.mark.parametrize(
    "fn",
    [
        lambda s: s.upper(),
        lambda s: math.sin(len(s)),
        lambda s: json.loads(s)["a"],
        lambda s: clonos.random.random() + clonos.call(len, s),
        lambda rows: model.predict([rows]),
        lambda x: NUMBERS[x] + np.mean(NUMBERS),
        lambda x: FRAME.a[x],
        lambda s: pd.to_datetime(s).dt.year.rolling(3).mean(),
        lambda s: getattr(s, "upper")(),  # noqa: B009
        lambda s: getattr(np, "sum")(s),  # noqa: B009
        lambda s: WORDS[s]["of"],
        by_request,
    ],
)
def test_ordinary_functions_are_sure_not_to(fn: Any) -> None:
    assert not _asks.asks_for_keys(fn)


def test_what_is_put_into_a_library_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clonos import _held

    folder = tmp_path / "site-packages"
    folder.mkdir()
    text = "ways = {}\nhook = None\nclass Bus:\n    def send(self, x):\n"
    text += "        return hook(x) if hook else ways['pay'](x)\nbus = Bus()\n"
    (folder / "asks_library.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    _held._library_folders.cache_clear()
    _held.is_users_file.cache_clear()
    try:
        import asks_library

        def fn(x: Any) -> Any:
            return asks_library.bus.send(x)

        assert not _asks.asks_for_keys(fn)
        assert id(asks_library.Bus) in _asks._clean
        asks_library.ways["pay"] = charge
        assert _asks.asks_for_keys(fn)
        asks_library.ways["pay"] = str
        assert not _asks.asks_for_keys(fn)
        asks_library.hook = charge
        assert _asks.asks_for_keys(fn)
        asks_library.hook = None
        assert not _asks.asks_for_keys(fn)
        asks_library.Bus.send = charge
        assert _asks.asks_for_keys(fn)
    finally:
        monkeypatch.undo()
        _held._library_folders.cache_clear()
        _held.is_users_file.cache_clear()


def test_a_client_that_is_made_by_setup_may_ask() -> None:
    def pay(client: Any, x: int) -> Any:
        return client.pay(x)

    def counts(**options: Any) -> bool:
        of_use = ("return_type", "arguments", "keyed", "keywords", "types", "pickled", "conf")
        function = causal("string", uid="pays", **options)(pay)
        return bool(function._spec(per="row", **dict.fromkeys(of_use)).count_occurrences)

    assert counts(setup=Client)
    assert not counts()
