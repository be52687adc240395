"""The tags of this thread's work, in whichever session of the program it runs.

Spark keeps tags by session and thread, and anybody may clear them: work of another session, which
``newSession`` made, would be outside of the epoch in which it is done.

Private name of Spark, seen in 4.3: ``SparkConnectClient.get_tags``.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

_of_thread = threading.local()


def _own() -> frozenset[str]:
    own: frozenset[str] = getattr(_of_thread, "tags", frozenset())
    return own


@contextlib.contextmanager
def tagged(spark: Any, tag: str) -> Iterator[None]:
    """Have all that this thread asks of Spark carry a tag.

    Threads that are made with ``pyspark.InheritableThread(..., session=spark)`` have it too.
    """
    _have_sent(type(spark.client))
    before, is_outermost = _own(), tag not in spark.getTags()
    _of_thread.tags = before | {tag}
    if is_outermost:
        spark.addTag(tag)
    try:
        yield
    finally:
        _of_thread.tags = before
        # The block may have stopped Spark at its end.
        if is_outermost and not spark.is_stopped:
            spark.removeTag(tag)


def _have_sent(client: Any) -> None:
    """Have every client of the program send the tags of the thread that asks."""
    original = client.get_tags
    if hasattr(original, "_clonos"):
        return

    @functools.wraps(original)
    def get_tags(self: Any) -> set[str]:
        return set(original(self)) | _own()

    get_tags._clonos = True  # type: ignore[attr-defined]
    client.get_tags = get_tags
