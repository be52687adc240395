"""What calls gave, as it is recorded: it comes back as what it was, in another process too."""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Callable
from typing import Any

from pyspark.cloudpickle import CloudPickler

from clonos import _exceptions
from clonos._held import is_users, reduced
from clonos._named import Named, is_found, parts_of
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

    def _named(self, whose: str) -> Named:
        if whose == _FUNCTION:
            return self._function()
        if self._service is None:
            self._service = Named(*self._roots)
        return self._service


class _PlainSaver(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _exceptions.reduced(value) if isinstance(value, BaseException) else NotImplemented


class _Saver(CloudPickler):
    def __init__(self, buffer: io.BytesIO, sight: Sight | None, *, in_part: bool = False) -> None:
        super().__init__(buffer, protocol=5)  # type: ignore[no-untyped-call]
        self._sight = sight
        self._in_part = in_part

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            return _exceptions.reduced(value)
        found = super().reducer_override(value)  # type: ignore[no-untyped-call]
        is_code = isinstance(value, (type, types.FunctionType))
        if found is NotImplemented and self._in_part and not is_code:
            try:
                reduced(value, type(value))
            except Exception:  # noqa: BLE001 - whatever an object raises that cannot be pickled
                return _exceptions.stand_in(value)
        return found

    def persistent_id(self, value: Any) -> Any:
        is_code = isinstance(value, (type, types.FunctionType))
        if not is_code or self._sight is None or is_found(value):
            return None
        place = self._sight.place_of(value)
        # One that a function made and nobody names is compared with by nobody.
        is_named = isinstance(value, type) and "<locals>" not in value.__qualname__
        if place is None and is_named and is_users(value.__module__):
            # Made anew from its code it would be another class, and `isinstance` would say no.
            message = (
                f"neither the function nor the service names the class {value.__qualname__}, so "
                "that a replay could not give it back: name it there, as for isinstance()"
            )
            raise pickle.PicklingError(message)
        return place


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
    buffer = io.BytesIO()
    try:
        _PlainSaver(buffer, protocol=5).dump(value)
    except Exception:  # noqa: BLE001 - what only cloudpickle can handle
        buffer = io.BytesIO()
        _Saver(buffer, sight).dump(value)  # type: ignore[no-untyped-call]
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
        buffer = io.BytesIO()
        _Saver(buffer, sight, in_part=True).dump(outcome)  # type: ignore[no-untyped-call]
        data = buffer.getvalue()
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
    return _Loader(data, sight).load()
