"""Table functions: each call of ``eval`` and ``terminate`` is recorded with the rows it gave.

A call is known by its arguments and by what the instance has kept of earlier ones: attributes that
changed since its first call. They are recorded with the rows and put back at replay, so that calls
that go on live see what they would have seen.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from clonos import _core
from clonos._worker.images import Image, content_bytes, image_of
from clonos._worker.pieces import Pieces
from clonos._worker.udf import UdfSpec
from clonos.errors import ConfigError

RECORDED_METHODS = ("eval", "terminate")
# Attributes of an instance that are larger at its first call are taken for resources (a model, a
# table to look up) that calls do not change; those that grow beyond it are refused.
ATTRIBUTE_BYTES_MAX = 64 * 1024
_BASELINE = "_clonos_attributes"
_CONSTANT = Image(b"")
# Stand for images, which are pickles: the attribute is as at the first call, or was deleted.
_FIRST = Image(b"first")
_GONE = Image(b"gone")


def make_handler(spec: UdfSpec, handler: type) -> type:
    """Return a class that Spark runs in place of a table function's, under its name."""
    pieces = Pieces(spec)
    methods = {
        name: _recorded(pieces, getattr(handler, name))
        for name in RECORDED_METHODS
        if hasattr(handler, name)
    }
    methods["cleanup"] = _cleanup(pieces, handler)
    names = {"__module__": handler.__module__, "__qualname__": handler.__qualname__}
    return type(handler)(handler.__name__, (handler,), methods | names)


def _cleanup(pieces: Pieces, handler: type) -> Callable[..., Any]:
    """Return the method that Spark calls when a task is over, however it ended."""

    def cleanup(self: Any) -> None:
        try:
            # Also where the class has none of its own.
            getattr(handler, "cleanup", lambda _self: None)(self)
        finally:
            pieces.close()

    return cleanup


def _recorded(pieces: Pieces, method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generated(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            yield from call(pieces, method, self, args, kwargs) or ()

        return generated

    @functools.wraps(method)
    def returned(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(pieces, method, self, args, kwargs)

    return returned


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call did: its rows, the attributes it changed, whether it wants no more rows."""

    rows: Any
    attributes: dict[str, Image]
    skip: BaseException | None


def call(
    pieces: Pieces,
    method: Callable[..., Any],
    instance: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return the rows of one call of a table function's method, now or as recorded.

    Raises
    ------
    ConfigError
        If the instance keeps more than is recorded with each call.
    """
    if pieces.under_way or not pieces.is_recorded:
        return method(instance, *args, **kwargs)
    name = method.__name__.encode()
    arguments = [_argument_bytes(value) for value in (*args, *kwargs.values())]
    columns = [_column(name, *map(str.encode, kwargs), *arguments)]
    if not pieces.replays_outcomes:
        rows, skip = pieces.run(columns, lambda: _rows_of(method, instance, args, kwargs))
        return rows if skip is None else _then_skip(rows, skip)
    attributes = _Attributes(instance, pieces.spec.uid)
    before = attributes.changed()
    columns.append(_column(*(part for item in before.items() for part in _parts(*item))))
    ran = False

    def work() -> Outcome:
        nonlocal ran
        ran = True
        rows, skip = _rows_of(method, instance, args, kwargs)
        return Outcome(rows, _difference(before, attributes.changed()), skip)

    outcome = pieces.run(columns, work)
    if not ran:
        attributes.restore(outcome.attributes)
    return outcome.rows if outcome.skip is None else _then_skip(outcome.rows, outcome.skip)


def _rows_of(
    method: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    from pyspark.sql.udtf import SkipRestOfInputTableException

    rows: list[Any] = []
    try:
        result = method(instance, *args, **kwargs)
        if not isinstance(result, Iterator):
            return result, None
        rows.extend(result)
    except SkipRestOfInputTableException as skip:
        return rows, skip
    return rows, None


def _then_skip(rows: Any, skip: BaseException) -> Iterator[Any]:
    yield from rows
    raise skip


def _difference(before: dict[str, Image], after: dict[str, Image]) -> dict[str, Image]:
    names = sorted(before.keys() | after.keys())
    images = {name: after.get(name, _FIRST) for name in names}
    first = _FIRST.content
    was = {name: before[name].content if name in before else first for name in names}
    return {name: image for name, image in images.items() if image.content != was[name]}


class _Attributes:
    """What an instance keeps from call to call."""

    def __init__(self, instance: Any, uid: str) -> None:
        if not hasattr(instance, "__dict__"):
            message = f"the class of {uid} has __slots__; only attributes in __dict__ are recorded"
            raise ConfigError(message, "CONFIG")
        self._values: dict[str, Any] = instance.__dict__
        self._uid = uid
        if _BASELINE not in self._values:
            self._values[_BASELINE] = self._first_images()
        self._baseline: dict[str, Image] = self._values[_BASELINE]

    def _first_images(self) -> dict[str, Image]:
        images = {}
        for name, value in self._values.items():
            try:
                image = image_of(value)
            except Exception:  # a client, a lock: nothing that a call would change and pass on
                image = _CONSTANT
            images[name] = image if len(image.content) <= ATTRIBUTE_BYTES_MAX else _CONSTANT
        return images

    def changed(self) -> dict[str, Image]:
        """Attributes that are not as they were at the first call, by name."""
        images = {}
        for name, value in sorted(self._values.items()):
            first = self._baseline.get(name, _GONE)
            if name == _BASELINE or first is _CONSTANT:
                continue
            image = self._image(name, value)
            if image.content != first.content:
                images[name] = image
        gone = sorted(self._baseline.keys() - self._values.keys())
        return images | {name: _GONE for name in gone if self._baseline[name] is not _CONSTANT}

    def _image(self, name: str, value: Any) -> Image:
        try:
            image = image_of(value)
        except Exception as error:
            message = (
                f"{self._uid} sets self.{name} in a call, which cannot be pickled ({error}): make "
                "it in __init__, or use record='services'"
            )
            raise ConfigError(message, "CONFIG") from error
        size = len(image.content)
        if size > ATTRIBUTE_BYTES_MAX:
            message = (
                f"{self._uid} keeps {size} bytes in self.{name} from call to call, more than "
                f"the {ATTRIBUTE_BYTES_MAX} that are recorded with each: use record='services' and "
                "clonos.call(…) around what must not be asked twice"
            )
            raise ConfigError(message, "CONFIG")
        return image

    def restore(self, images: dict[str, Image]) -> None:
        """Put back what a recorded call changed."""
        for name, image in images.items():
            found = self._baseline.get(name, _GONE) if image == _FIRST else image
            if found == _GONE:
                self._values.pop(name, None)
            else:
                self._values[name] = found.value()


def _parts(name: str, image: Image) -> tuple[bytes, bytes]:
    return name.encode(), image.content


def _argument_bytes(value: Any) -> bytes:
    """Bytes that are the same for equal arguments."""
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return _rows_bytes([value])
    if isinstance(value, (pa.RecordBatch, pa.Table)):
        return "\0".join(value.schema.names).encode() + _rows_bytes(value.columns)
    return content_bytes(value)


def _rows_bytes(columns: list[Any]) -> bytes:
    if not columns:
        return b""
    arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
    prints = _core.row_fingerprints(arrays)
    return b"".join(number.to_bytes(8, "little") for number in prints.to_pylist())


def _column(*parts: bytes) -> pa.Array:
    """One row that is the same for the same bytes."""
    prints = [_core.bytes_fingerprint(part).to_bytes(8, "little") for part in parts]
    return pa.array([b"".join(prints)], pa.large_binary())
