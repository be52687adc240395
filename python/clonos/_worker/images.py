"""Bytes that stand for values: the same for equal ones, and enough to make them again.

Equal plain values have equal images, whichever objects they are made of, in whatever order their
sets were filled, and in any process. Classes and functions of the user's program count by their
names in an image; their code travels beside it.
"""

from __future__ import annotations

import io
import pickle
import types
from dataclasses import dataclass
from typing import Any

_SETS = (set, frozenset)
_ORDERED = {int, str, bytes}
_BY_NAME = (type, types.FunctionType)


@dataclass(frozen=True, slots=True)
class Image:
    """What stands for a value; `code` is of classes and functions that no module has."""

    content: bytes
    code: tuple[bytes, ...] = ()

    def value(self) -> Any:
        """Return the value, made again."""
        return _Unpickler(self).load()


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, *, fast: bool) -> None:
        super().__init__(buffer, protocol=5)
        # Without its memo: two equal strings are two strings, be they one object or two.
        self.fast = fast
        self.code: list[bytes] = []

    def persistent_id(self, value: Any) -> Any:
        if type(value) in _SETS:
            kinds = {type(item) for item in value}
            # Of one plain type they have an order already.
            key = None if len(kinds) == 1 and kinds <= _ORDERED else content_bytes
            return "set", type(value).__name__, sorted(value, key=key)
        if isinstance(value, _BY_NAME) and not _is_found(value):
            from pyspark import cloudpickle

            self.code.append(cloudpickle.dumps(value, protocol=5))  # type: ignore[no-untyped-call]
            return "code", value.__module__, value.__qualname__, len(self.code) - 1
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, image: Image) -> None:
        super().__init__(io.BytesIO(image.content))
        self._code = image.code

    def persistent_load(self, name: Any) -> Any:
        kind, *rest = name
        if kind == "set":
            return {"set": set, "frozenset": frozenset}[rest[0]](rest[1])
        return pickle.loads(self._code[rest[-1]])


def _is_found(value: Any) -> bool:
    """Whether any process finds a class or function by its name."""
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return str(value.__module__) != "__main__"


def image_of(value: object) -> Image:
    """Return the image of a value.

    Raises
    ------
    Exception
        If it cannot be pickled.
    """
    try:
        return _image(value, fast=True)
    except (ValueError, RecursionError):
        # It holds itself: then what is shared in it counts.
        return _image(value, fast=False)


def _image(value: object, *, fast: bool) -> Image:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, fast=fast)
    pickler.dump(value)
    return Image(buffer.getvalue(), tuple(pickler.code))


def content_bytes(value: object) -> bytes:
    """Return the content of a value's image: what tells it from other values.

    Raises
    ------
    Exception
        If `value` cannot be pickled.
    """
    return image_of(value).content
