"""What services give is recorded, and comes back as it was in another process of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clonos import _services, causal
from clonos._services import Scope
from clonos.errors import ReplayDivergence

PROGRAM = """
import dataclasses
import enum

import clonos


class NotFound(Exception):
    pass


@dataclasses.dataclass
class Price:
    value: float


class Kind(enum.Enum):
    A = 1


def kind_of(number):
    class Odd:
        def __eq__(self, other):
            return isinstance(other, type(self))

    return Odd


Odd, Even = kind_of(1), kind_of(2)


class Client:
    def __init__(self, special):
        self.special = special

    def fetch(self, number):
        if number == 0:
            raise NotFound(f"no {number}")
        return [Price(number), Kind.A, Odd(), Even(), self.special(), double][number - 1]


def double(number):
    return 2 * number


def make():
    class Special:
        pass

    client = Client(Special)

    def ask(number):
        try:
            found = clonos.call(client.fetch, number)
        except NotFound as error:
            return f"not found: {error}"
        seen = [isinstance(found, Price), found is Kind.A, found == Odd(), found == Even()]
        return [*seen, type(found) is client.special, found is double]

    return ask


def hidden():
    def fetch():
        return type("Hidden", (), {"__module__": "__main__"})()

    def ask():
        try:
            return clonos.call(fetch)
        except clonos.errors.ClonosError as error:
            return str(error)

    return ask
"""


class Log:
    """Records the outcomes of calls, or gives back what another has recorded."""

    def __init__(self, recorded: list[tuple[str, bool, bytes]] | None = None) -> None:
        self.made: list[tuple[str, bool, bytes]] = []
        self._left = list(recorded or ())

    def time_ns(self) -> int:
        return 0

    def getrandbits(self, bits: int) -> int:
        return bits

    def random(self) -> float:
        return 0.5

    def call_begin(self, name: str) -> tuple[bool, bytes] | None:
        if not self._left:
            return None
        recorded, ok, data = self._left.pop(0)
        assert recorded == name
        return ok, data

    def call_record(self, name: str, ok: bool, value: bytes) -> None:
        self.made.append((name, ok, value))


def within(scope: Scope, work: Callable[[], Any]) -> Any:
    token = _services.current.set(scope)
    try:
        return work()
    finally:
        _services.current.reset(token)


def test_a_plain_call_of_a_causal_function_is_recorded_where_services_are() -> None:
    asked = []

    @causal("int")
    def price(number: int) -> int:
        asked.append(number)
        return number * len(asked)

    live = Log()
    first = within(Scope(live), lambda: [price(3), price(3)])
    replay = Log(live.made)
    assert within(Scope(replay), lambda: [price(3), price(3)]) == first == [3, 6]
    assert asked == [3, 3]
    assert price(3) == 9


def start() -> dict[str, Any]:
    """Run the program, as in a process of its own."""
    program: dict[str, Any] = {"__name__": "__main__"}
    exec(PROGRAM, program)
    return program


def test_outcomes_are_of_the_classes_of_a_program_that_was_started_again() -> None:
    def run(log: Log) -> list[Any]:
        ask = start()["make"]()
        return within(Scope(log, function=ask), lambda: [ask(number) for number in range(7)])

    live = Log()
    first = run(live)
    assert first[0] == "not found: no 0"
    assert [each.index(True) for each in first[1:]] == [0, 1, 2, 3, 4, 5]
    assert run(Log(live.made)) == first
    # The code is not recorded with each call.
    assert max(len(data) for _, _, data in live.made) < 300


def test_an_outcome_of_a_class_that_nothing_names_is_refused() -> None:
    def run(log: Log) -> Any:
        ask = start()["hidden"]()
        return within(Scope(log, function=ask), ask)

    live = Log()
    first = run(live)
    assert "names the class Hidden: define it outside of functions" in first
    assert run(Log(live.made)) == first


def test_a_class_that_is_not_named_any_more_is_no_other_class() -> None:
    live = Log()
    program = start()
    ask = program["make"]()
    within(Scope(live, function=ask), lambda: ask(1))
    with pytest.raises(ReplayDivergence, match="Price is recorded, which the function does not"):
        within(Scope(Log(live.made), function=None), lambda: ask(1))
