"""Rows of an initial state, behind those that a stateful operator is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clonos import _attached
from clonos._operators.grouped import grouping
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from clonos._operators.grouped import Grouped, Key

# Of the rows of the initial state; gone before the processor.
INITIAL = "_clonos_initial"


def with_initial(rows: DataFrame, places: list[str], initial: Grouped) -> DataFrame:
    """Put the rows of the initial state behind the others: in a column, and keyed as they are.

    Those of a stream are in its first batch.

    Raises
    ------
    ConfigError
        If the keys are of other types, or the initial state is itself a stream.
    """
    from pyspark.sql import functions

    df, keys = grouping(initial, "initial_state")
    if df.isStreaming:
        message = "initial_state must be of a batch query: it is read once, in the first batch"
        raise ConfigError(message, "CONFIG")
    # Not what a table says of its columns besides, such as where there may be nulls.
    given = [df.select(_column(key)).schema[0].dataType.simpleString() for key in keys]
    wanted = [rows.schema[place].dataType.simpleString() for place in places]
    if given != wanted:
        message = (
            "the keys of initial_state must have the types of those of the rows: "
            f"{given} are not {wanted}"
        )
        raise ConfigError(message, "CONFIG")
    named = [_column(key).alias(place) for key, place in zip(keys, places, strict=True)]
    kept = functions.struct(*[functions.col(quoted(name)) for name in df.columns])
    starting = df.select(*named, kept.alias(INITIAL))
    if rows.isStreaming:
        starting = _in_first_batch(starting)
    return rows.unionByName(starting, allowMissingColumns=True)


def _in_first_batch(df: DataFrame) -> DataFrame:
    """Make a stream of `df` that has all its rows in the first batch.

    Spark unites no stream with a batch, but joins them. It is told which way: its product asks for
    no row of one side while the other has no partition, where a broadcast would be made in each
    batch.
    """
    from clonos._sources.first_batch import COLUMN, read_first_batch

    session = _attached.current()
    # The attached one alone knows the format; a stream may be of another of the application.
    first = read_first_batch(df.sparkSession if session is None else session.spark)
    return df.hint("shuffle_replicate_nl").crossJoin(first).drop(COLUMN)


def _column(key: Key) -> Any:
    from pyspark.sql import functions

    return functions.col(quoted(key.name)) if key.column is None else key.column


def quoted(name: str) -> str:
    """Return the name of a column as expressions have it."""
    return f"`{name.replace('`', '``')}`"
