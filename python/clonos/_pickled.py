"""Digests of pickles, of the value alone: not of what is shared in it, nor of the process."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from typing import Any

# What is larger, or holds more objects, takes too long to be looked at each time.
BYTES_MAX = 256 << 20
OBJECTS_MAX = 5_000_000
SIMPLE = (bool, int, float, complex, str, bytes, bytearray, type(None), type(...), range)
_PLAIN = frozenset({*SIMPLE, tuple, list})
_SETS = frozenset({set, frozenset})
# What is pickled in the place of an object: ``None`` for the object itself.
StandIn = Callable[[Any, type], Any]


class NotPlainError(Exception):
    """Raised by a `StandIn`: the pickle does not tell what this object is."""


class TooLargeError(Exception):
    """The value is too large to be looked at."""


class _Pickler(pickle.Pickler):
    """Writes sets in an order of their own, and equal values equally, whoever else holds them."""

    def __init__(self, stand_in: StandIn, *, fast: bool) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._large = hashlib.blake2b(digest_size=16)
        super().__init__(_Writer(self._digest), protocol=5, buffer_callback=self._buffer)
        self.fast = fast
        self._stand_in = stand_in
        self._objects = 0

    def persistent_id(self, obj: Any) -> Any:
        self._objects += 1
        kind = type(obj)
        if kind in _PLAIN:
            if self._objects > OBJECTS_MAX:
                raise TooLargeError
            return None
        if kind in _SETS:
            return "set", sorted(_digest(item, self._stand_in) for item in obj)
        return self._stand_in(obj, kind)

    def _buffer(self, out_of_band: pickle.PickleBuffer) -> bool:
        with out_of_band.raw() as raw:
            if raw.nbytes > BYTES_MAX:
                raise TooLargeError
            self._large.update(raw)
        return False

    def digest(self) -> bytes:
        return self._digest.digest() + self._large.digest()


class _Writer:
    def __init__(self, digest: Any) -> None:
        self.write = digest.update


def _digest(value: Any, stand_in: StandIn) -> bytes:
    pickler = _Pickler(stand_in, fast=True)
    try:
        pickler.dump(value)
    except (ValueError, RecursionError):
        # It holds itself: then what is shared in it must count.
        pickler = _Pickler(stand_in, fast=False)
        pickler.dump(value)
    return pickler.digest()


def stable_digest(value: Any, stand_in: StandIn = lambda _value, _kind: None) -> bytes | None:
    """Return bytes that equal values of one type have in every process, or ``None``.

    ``None`` stands for what cannot be pickled, or not without a look at what `stand_in` refuses.

    Raises
    ------
    TooLargeError
        If it would take too long.
    """
    try:
        return _digest(value, stand_in)
    except TooLargeError:
        raise
    except Exception:  # noqa: BLE001 - whatever a library raises when asked to pickle a lock
        return None


def text_of(value: Any) -> str:
    """Return a text that equal plain values have in every process."""
    try:
        return repr(value)
    except ValueError:
        # An integer of more digits than Python writes.
        return repr(stable_digest(value))
