"""``exchange``: the edge between two causal operators, over Spark's own shuffle.

`exchange` and `map_in_arrow` return ordinary DataFrames that remember how they were made, so that
an operator and the exchanges on both sides of it run in one Python task: the DataFrame with the
rows in between is there if it is asked for, and never computed if it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clonos._operators.spec import spec_of
from clonos._spec import Ends, OperatorSpec
from clonos.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

FRAME_SCHEMA = "pid int, frame binary"
PARTITIONS_MAX = 1 << 20
_MEMORY = "_clonos_made"


@dataclass(frozen=True)
class Made:
    """How a DataFrame was made: what was read, and what ran on it.

    `sender` is the operator whose frames `source` has, or ``None`` if it has rows.
    """

    source: DataFrame
    sender: str | None
    func: ArrowFunction | None
    spec: OperatorSpec


def exchange(
    df: DataFrame, keys: str | Sequence[str], partitions: int, *, uid: str | None = None
) -> DataFrame:
    """Bring rows with equal keys together, as ``df.repartition(partitions, *keys)`` does.

    Whole batches cross Spark's shuffle instead of rows, and the determinants that led to them ride
    along: what comes before and after is recovered as one, and nothing waits for replication in
    between. Put `map_in_arrow` on either side of it; the three then run in two Python tasks.

    Rows of one sender keep their order. Nulls are equal to each other, all NaNs are, and ``-0.0``
    equals ``0.0``. Without keys (``[]``) rows are dealt out in turn.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        Batch or streaming; any schema that Arrow can represent.
    keys : str or sequence of str
        Names of the key columns.
    partitions : int
        Number of partitions, from 1 to 1,048,576. A row's partition depends on its keys and this
        number alone, in every version: see ``docs/exchange.md``.
    uid : str, optional
        Stable name of the edge; default: made of the operator before it, keys and partitions.

    Returns
    -------
    pyspark.sql.DataFrame
        The same columns; within a partition, in the order of arrival.

    Raises
    ------
    ConfigError
        If a key is no column of `df`, or `partitions` is out of range.

    Examples
    --------
    >>> scored = clonos.map_in_arrow(events, score, "id long, score double")  # doctest: +SKIP
    >>> by_id = clonos.exchange(scored, "id", 8)  # doctest: +SKIP
    >>> totals = clonos.map_in_arrow(by_id, total, "id long, total double")  # doctest: +SKIP
    """
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    _check(df, names, partitions)
    schema = _arrow_schema(df.schema)
    label = f"exchange({', '.join(names)}; {partitions})"
    made: Made | None = getattr(df, _MEMORY, None)
    if made is None or made.func is None:
        # No operator of ours before it: what sends the frames has a name and a log of its own.
        made = Made(df, None, None, spec_of(None, uid or label))
    sender = made.spec.name
    indices = tuple(schema.get_field_index(name) for name in names)
    body = _body(made, Ends(made.sender, schema, indices, partitions))
    frames = made.source.mapInArrow(body, FRAME_SCHEMA).repartitionById(partitions, "pid")
    gathered = Made(frames, sender, None, spec_of(None, f"{uid or sender + '|' + label}.in"))
    return _remember(gathered, df.schema)


def map_stage(
    df: DataFrame, func: ArrowFunction, schema: StructType | str, uid: str | None
) -> DataFrame:
    """Run `func` over partitions, in one task with the exchange before it, if there is one."""
    made: Made | None = getattr(df, _MEMORY, None)
    if made is None or made.func is not None:
        made = Made(df, None, None, spec_of(func, uid))
    return _remember(Made(made.source, made.sender, func, spec_of(func, uid)), schema)


def _remember(made: Made, schema: StructType | str) -> DataFrame:
    df = made.source.mapInArrow(_body(made, Ends(made.sender)), schema)
    # Not a column: an attribute of this one Python object, gone with it.
    object.__setattr__(df, _MEMORY, made)
    return df


def _body(made: Made, ends: Ends) -> Any:
    spec, func = made.spec, made.func

    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from clonos._worker import stage_runner

        return stage_runner.run(spec, func, ends, batches)

    return body


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _check(df: DataFrame, names: tuple[str, ...], partitions: int) -> None:
    columns = df.columns
    for name in names:
        if columns.count(name) != 1:
            message = f"key {name!r} is not one of the columns {columns}"
            raise ConfigError(message, "CONFIG")
    if isinstance(partitions, bool) or not 1 <= partitions <= PARTITIONS_MAX:
        message = f"partitions={partitions!r} is not between 1 and {PARTITIONS_MAX}"
        raise ConfigError(message, "CONFIG")
    if not columns:
        message = "a DataFrame without columns cannot be exchanged"
        raise ConfigError(message, "CONFIG")
