"""Pickles of what Python itself cannot pickle, as PySpark makes them: code is in them by value."""

from __future__ import annotations

import io
import pickle
import types
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import CloudPickler

from clonos import _exceptions
from clonos._held import is_users, reduced
from clonos._named import is_found

if TYPE_CHECKING:
    from clonos._outcomes import Sight


class Saver(CloudPickler):
    """Writes the names of classes and functions that are in sight, and the rest by value.

    With `in_part`, what cannot be pickled is there as its text.
    """

    def __init__(self, buffer: io.BytesIO, sight: Sight | None, *, in_part: bool = False) -> None:
        super().__init__(buffer, protocol=5)  # type: ignore[no-untyped-call]
        self._sight = sight
        self._in_part = in_part
        self._depths: dict[int, int] = {}

    def reducer_override(self, value: Any) -> Any:
        """How `value` is written, as pickle asks for it; ``NotImplemented`` for its own way."""
        if isinstance(value, BaseException):
            return _exceptions.reduced(value, self._depths)
        found = super().reducer_override(value)  # type: ignore[no-untyped-call]
        is_code = isinstance(value, (type, types.FunctionType))
        if found is NotImplemented and self._in_part and not is_code:
            try:
                reduced(value, type(value))
            except Exception:  # noqa: BLE001 - whatever an object raises that cannot be pickled
                return _exceptions.stand_in(value)
        return found

    def persistent_id(self, value: Any) -> Any:
        """Name of a class or function that is in sight; ``None`` for what is written by value."""
        is_code = isinstance(value, (type, types.FunctionType))
        if not is_code or self._sight is None or is_found(value):
            return None
        place = self._sight.place_of(value)
        # One that a function made and nobody names is compared with by nobody.
        is_named = isinstance(value, type) and "<locals>" not in value.__qualname__
        if place is None and is_named and is_users(value.__module__):
            # Made anew from its code it would be another class, and `isinstance` would say no.
            cut = ", in the first 10,000 objects that they hold" if self._sight.is_cut else ""
            message = (
                f"neither the function nor the service names the class {value.__qualname__}{cut}, "
                "so that a replay could not give it back: name it there, as for isinstance()"
            )
            raise pickle.PicklingError(message)
        return place
