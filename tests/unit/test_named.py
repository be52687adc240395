"""Names of the program's classes: the same in each process, whatever its data has become."""

from __future__ import annotations

import types
from typing import Any

import pytest

from clonos._named import Named


def not_found() -> type[Exception]:
    class NotFound(Exception):
        pass

    return NotFound


def program(filled: str | None = None) -> tuple[Any, dict[str, type]]:
    """A function, and classes of one name that it compares with."""

    class Users:
        NotFound = not_found()

    class Orders:
        NotFound = not_found()

    classes = {"users": Users.NotFound, "orders": Orders.NotFound}
    KEPT = {} if filled is None else {1: classes[filled]}  # noqa: N806 - comes before the classes

    def ask() -> Any:
        return KEPT, Orders, Users

    return ask, classes


def names(filled: str | None) -> dict[str, Any]:
    ask, classes = program(filled)
    named = Named(ask)
    return {whose: named.name_of(kind) for whose, kind in classes.items()}


def test_what_was_kept_meanwhile_does_not_change_names() -> None:
    at_first = names(None)
    assert len(set(at_first.values())) == 2
    assert names("users") == names("orders") == at_first


def test_a_large_table_hides_no_class() -> None:
    kind = not_found()
    table = {number: (number, str(number)) for number in range(20_000)}
    objects = [[object()] for _ in range(20_000)]

    def is_missing(error: Exception) -> bool:
        return isinstance(error, kind)

    def ask() -> Any:
        return table, objects, is_missing

    named = Named(ask)
    assert named.name_of(kind) is not None
    assert named.is_cut
    assert not Named(is_missing).is_cut


def test_modules_are_not_searched() -> None:
    def ask() -> Any:
        return types, Named

    assert Named(ask).name_of(types.ModuleType) is None
    assert Named(ask).name_of(ask) is not None
    assert not Named(ask).is_cut


def test_classes_are_found_in_unions_and_namespaces() -> None:
    first, second = not_found(), not_found()
    held = types.SimpleNamespace(error=first)
    either = second | int

    def ask() -> Any:
        return held, either

    assert None not in {Named(ask).name_of(first), Named(ask).name_of(second)}


class Client:
    """As botocore makes clients: the classes of its errors are there when they are asked for."""

    def __init__(self) -> None:
        self._exceptions: Any = None

    @property
    def exceptions(self) -> Any:
        if self._exceptions is None:
            kinds = type("Exceptions", (), {"NotFound": type("NotFound", (Exception,), {})})
            self._exceptions = kinds()
        return self._exceptions

    def ask(self) -> Any:
        raise self.exceptions.NotFound


class Other(Client):
    asked = 0

    @property
    def exceptions(self) -> Any:
        Other.asked += 1
        return ()


def test_exceptions_that_a_client_makes_when_they_are_asked_for() -> None:
    made = type("Client", (Client,), {"__module__": "__main__"})()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client.exceptions.fget, "__module__", "botocore.client")  # type: ignore[attr-defined]
        named = Named(made.ask)
    assert named.name_of(made.exceptions.NotFound) is not None
    other = type("Other", (Other,), {"__module__": "__main__"})()
    assert Named(other.ask).name_of(other.exceptions) is None
    assert Other.asked == 1, "by this test"
