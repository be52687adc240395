"""What calls gave, as it is recorded: it comes back as what it was, in another process too."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from clonos import _exceptions
from clonos._named import ATOMS, Named, parts_of
from clonos.errors import ReplayDivergence

# Whose names an outcome has: those that the task's function sees come first.
_FUNCTION, _SERVICE = "function", "service"


class Sight:
    """Classes and functions that the code around a call can name.

    Parameters
    ----------
    function : callable
        Returns those that the task's function names.
    service : object
        What is called: a function, or a coroutine.
    """

    __slots__ = ("_function", "_roots", "_service")

    def __init__(self, function: Callable[[], Named], service: Any) -> None:
        self._function = function
        # A coroutine that has come to its end has forgotten what it was.
        self._roots = (service,) if callable(service) else tuple(parts_of(service))
        self._service: Named | None = None

    def place_of(self, thing: Any) -> tuple[str, str, str] | None:
        """What is recorded in place of a class or function; ``None`` if nothing names it."""
        for whose in (_FUNCTION, _SERVICE):
            name = self._named(whose).name_of(thing)
            if name is not None:
                return whose, *name
        return None

    def at(self, place: tuple[str, str, str]) -> Any:
        """Return the class or function of which `place` is recorded.

        Raises
        ------
        ReplayDivergence
            If nothing names it any more.
        """
        whose, *name = place
        try:
            return self._named(whose)[name[0], name[1]]
        except KeyError:
            message = f"a {'.'.join(name)} is recorded, which the {whose} does not name any more"
            raise ReplayDivergence(message, "REPLAY_DIVERGENCE") from None

    @property
    def is_cut(self) -> bool:
        """Whether there is more to be named than was looked at."""
        return any(self._named(whose).is_cut for whose in (_FUNCTION, _SERVICE))

    def _named(self, whose: str) -> Named:
        if whose == _FUNCTION:
            return self._function()
        if self._service is None:
            self._service = Named(*self._roots)
        return self._service


class Awaited:
    """Recorded in place of an outcome that was awaited, so that it is awaited at replay."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome


class Cancelled:
    """Recorded in place of an awaited outcome: the function gave the call up."""


class Refused:
    """Recorded in place of an outcome that cannot be: why, which ends the task at replay, too."""

    def __init__(self, message: str) -> None:
        self.message = message


class _PlainSaver(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=5)
        self._depths: dict[int, int] = {}

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            return _exceptions.reduced(value, self._depths)
        return NotImplemented


class _Loader(pickle.Unpickler):
    def __init__(self, data: bytes, sight: Sight) -> None:
        super().__init__(io.BytesIO(data))
        self._sight = sight

    def persistent_load(self, place: Any) -> Any:
        return self._sight.at(place)


def dumps(value: Any, sight: Sight | None = None) -> bytes:
    """Return the pickle of `value`.

    Classes and functions of the program that are in sight are names in it. Without a sight they are
    there by value, and come back as others.

    Raises
    ------
    Exception
        If it cannot be pickled, or is of a class of the program that is not in sight.
    """
    if _is_plain(value):
        # Most are, and then nothing else needs to be looked at.
        return pickle.dumps(value, protocol=5)
    buffer = io.BytesIO()
    try:
        _PlainSaver(buffer).dump(value)
    except Exception:  # noqa: BLE001 - what only cloudpickle can handle
        return _by_value(value, sight)
    return buffer.getvalue()


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return ATOMS.issuperset(map(type, value)) and ATOMS.issuperset(map(type, value.values()))
    return kind in ATOMS or (kind in {list, tuple} and ATOMS.issuperset(map(type, value)))


def _by_value(value: Any, sight: Sight | None, *, in_part: bool = False) -> bytes:
    # PySpark is there where calls are recorded, and not wherever this is imported.
    from clonos._by_value import Saver

    buffer = io.BytesIO()
    Saver(buffer, sight, in_part=in_part).dump(value)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def dumps_error(error: BaseException, outcome: Any, sight: Sight) -> bytes:
    """Return the pickle of what stands for an exception, `outcome`, or the exception itself.

    Raises
    ------
    Exception
        If it cannot be pickled, even without what it holds that cannot, or comes back as another.
    """
    try:
        data = dumps(outcome, sight)
    except Exception:  # noqa: BLE001 - it holds what cannot be pickled, such as its connection
        data = _by_value(outcome, sight, in_part=True)
    again = loads(data, sight)
    again = again if isinstance(again, BaseException) else again.outcome
    if not _exceptions.is_same(again, error):
        message = f"it comes back as {type(again).__qualname__}: {again}"
        raise pickle.PicklingError(message)
    return data


def loads(data: bytes, sight: Sight) -> Any:
    """Return the value of which `data` is the pickle.

    Raises
    ------
    ReplayDivergence
        If a class of the program is not in sight any more.
    """
    try:
        return pickle.loads(data)
    except pickle.UnpicklingError:
        # It has names in it.
        return _Loader(data, sight).load()
