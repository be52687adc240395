"""Pickles that depend on nothing but the value: not on what is shared in it, nor on the process."""

from __future__ import annotations

import hashlib
import io
import pickle
from typing import Any, ClassVar

# Objects larger than this are told apart by the hash of so much of them.
BYTES_MAX = 256 << 20
OPCODES_MAX = 500_000


class _TooLargeError(Exception):
    pass


# The pickler that is written in Python, whose methods can be replaced.
_PythonPickler: Any = pickle._Pickler


class _Pickler(_PythonPickler):  # type: ignore[misc]
    """Writes sets in an order of their own, and equal values equally, whoever else holds them.

    The C pickler cannot: it asks nobody about sets, and refers back to objects by identity.
    """

    dispatch: ClassVar[dict[Any, Any]] = dict(_PythonPickler.dispatch)

    def __init__(self, file: io.BytesIO, buffers: Any) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers)
        self.fast = True
        self._saves = 0
        self._nested = 0

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        self._saves += 1
        if self._saves > OPCODES_MAX:
            raise _TooLargeError
        self._nested += 1
        super().save(obj, save_persistent_id)
        self._nested -= 1

    def _save_set(self, obj: Any) -> None:
        super().save(sorted(stable_pickle(item) or repr(item).encode() for item in obj))

    dispatch[set] = _save_set
    dispatch[frozenset] = _save_set


def stable_pickle(value: Any) -> bytes | None:
    """Return bytes that equal values of one type have in every process, or ``None``.

    ``None`` stands for what cannot be pickled, or is too large to be looked at each time.
    """
    file = io.BytesIO()
    digest = hashlib.blake2b(digest_size=16)

    def buffer(out_of_band: pickle.PickleBuffer) -> bool:
        digest.update(out_of_band.raw()[:BYTES_MAX])
        return False

    try:
        _Pickler(file, buffer).dump(value)
    except Exception:  # noqa: BLE001 - whatever a library raises when asked to pickle a lock
        return None
    return file.getvalue() + digest.digest()
