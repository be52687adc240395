"""The two pipelines of the demo. Plain Spark and Clonos run the same code but for the decorator.

A word is asked for once per row: is it banned *now*? What the service answers changes, so a task
that runs again gets other answers, unless they were recorded.
"""

from __future__ import annotations

import functools
import http.client
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import clonos

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MAP_PARTITIONS = 6
REDUCE_PARTITIONS = 9
# The second stage is slow enough for an executor to be lost in it.
REDUCE_SECONDS = 0.7


@functools.cache
def _connection(host: str) -> http.client.HTTPConnection:
    """One kept-alive connection per Python worker: first asked for after the fork."""
    return http.client.HTTPConnection(host, timeout=30)


def ask(url: str, word: str, row: str) -> bool:
    """Ask the service at `url` about a word; it keeps `row` and the task attempt in its record."""
    from pyspark import TaskContext

    context = TaskContext.get()
    parts = urlsplit(url)
    headers = {
        "X-Row": row,
        "X-Task": str(-1 if context is None else context.taskAttemptId()),
        "Idempotency-Key": clonos.idempotency_key(),
    }
    connection = _connection(parts.netloc)
    connection.request("GET", f"{parts.path}/banned?word={quote(word)}", headers=headers)
    return connection.getresponse().read() == b"true"


def plain_udf(url: str) -> Any:
    """The question as Spark's own UDF, declared nondeterministic as Spark asks for."""
    from pyspark.sql.functions import udf

    @udf("boolean")
    def is_banned(word: str, row: str) -> bool:
        return ask(url, word, row)

    return is_banned.asNondeterministic()


def causal_udf(url: str) -> Any:
    """The same question under Clonos."""
    from clonos import causal

    @causal("boolean", uid="banned-words")
    def is_banned(word: str, row: str) -> bool:
        return ask(url, word, row)

    return is_banned


def batch_job(words: DataFrame, is_banned: Callable[..., Any]) -> DataFrame:
    """First stage: ask about each word. Shuffle by the answer. Second stage: slow work."""
    asked = words.select("line_no", "word_no", "word", is_banned("word", _row_id()).alias("banned"))
    return asked.repartition(REDUCE_PARTITIONS, "banned", "word").mapInArrow(
        slow, "line_no int, word_no int, word string, banned boolean"
    )


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stand for the work of the second stage: pass every row on, after a while."""
    time.sleep(REDUCE_SECONDS)
    yield from batches


def stream_job(lines: DataFrame, is_banned: Callable[..., Any]) -> DataFrame:
    """Take lines ``<line number> TAB <words>`` apart and ask about each word."""
    from pyspark.sql import functions as f

    parts = f.split("value", "\t")
    words = lines.select(
        parts[0].cast("int").alias("line_no"),
        f.posexplode(f.split(parts[1], " ")).alias("word_no", "word"),
    )
    return words.select("line_no", "word_no", "word", is_banned("word", _row_id()).alias("banned"))


def _row_id() -> Any:
    """Identity of a row for the service's record, and so for the verdict on the run."""
    from pyspark.sql import functions as f

    return f.concat_ws(":", "line_no", "word_no")
