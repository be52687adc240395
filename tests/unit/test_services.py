"""What services give is recorded, and comes back as it was in another process of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clonos import _services, causal
from clonos._services import Scope


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
