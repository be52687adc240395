"""Describing an operator to the workers that will run it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from clonos._attached import current_config
from clonos._code import code_fingerprint
from clonos._operators.places import warn_unrecorded
from clonos._spec import OperatorSpec
from clonos._uses import check_uid, new_use


def spec_of(
    func: Callable[..., Any] | None, uid: str | None, stacklevel: int = 5, name: str | None = None
) -> OperatorSpec:
    """Describe an operator; `func` is ``None`` for the ends of an exchange, which have no code.

    `name` is what it is called without a `uid`, in the place of the function's name.
    """
    if func is None:
        # Columns may have any name, and operators may not.
        name = label = re.sub(r"[#~\x00-\x1f]", "_", uid or "")
        code = 0
    else:
        label = getattr(func, "__qualname__", type(func).__name__)
        name = uid or name or f"{getattr(func, '__module__', '')}.{label}"
        code = code_fingerprint(func)
        check_uid(uid)
    config = current_config()
    if config is None:
        warn_unrecorded(name, stacklevel)
    raw = None if config is None else config.to_bytes()
    return OperatorSpec(new_use(name, code, named=uid is not None and func is not None), label, raw)
