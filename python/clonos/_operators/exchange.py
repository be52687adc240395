"""``exchange``: the edge between two causal operators, over Spark's own shuffle.

`exchange` and `map_in_arrow` return ordinary DataFrames that remember how they were made, so that
an operator and the exchanges on both sides of it run in one Python task: the DataFrame with the
rows in between is there if it is asked for, and never computed if it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clonos import _attached
from clonos._arrow_types import arrow_schema
from clonos._operators.grouped import column_called
from clonos._operators.spec import spec_of
from clonos._spec import Ends, OperatorSpec
from clonos._uses import Use
from clonos._worker.libraries import LIBRARIES, Libraries
from clonos.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

FRAME_SCHEMA = "pid int, frame binary"
PARTITIONS_MAX = 1 << 20
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_MEMORY = "_clonos_made"
# Columns of keys that are expressions; gone again behind the exchange.
_COMPUTED = "_clonos_key_"


@dataclass(frozen=True)
class Made:
    """How a DataFrame was made: what was read, and what ran on it.

    `sender` is the use of the operator whose frames `source` has, or ``None`` if it has rows.
    """

    source: DataFrame
    sender: Use | None
    func: ArrowFunction | None
    spec: OperatorSpec


def exchange(
    df: DataFrame,
    n: int | Column | str | None = None,
    *keys: Column | str,
    uid: str | None = None,
) -> DataFrame:
    """Bring rows with equal keys together, as ``df.repartition(n, *keys)`` does.

    Whole batches cross Spark's shuffle instead of rows, and the determinants that led to them ride
    along: what comes before and after is recovered as one, and nothing waits for replication in
    between. Put `map_in_arrow` on either side of it; the three then run in two Python tasks.

    Rows of one sender keep their order. Nulls are equal to each other, all NaNs are, and ``-0.0``
    equals ``0.0``. Without keys rows are dealt out in turn.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        Batch or streaming; any schema that Arrow can represent.
    n : int, optional
        Number of partitions, from 1 to 1,048,576; default: ``spark.sql.shuffle.partitions``. May be
        left out, as in ``repartition``: ``exchange(df, "id")``. A row's partition depends on its
        keys and this number alone, in every version: see ``docs/exchange.md``.
    *keys : Column or str
        The key columns. An expression, such as ``col("at").cast("date")``, is computed as a column
        first; then what runs before and after the exchange runs in Python tasks of its own.
    uid : str, optional
        Stable name of the edge; default: made of the operator before it, keys and partitions.

    Returns
    -------
    pyspark.sql.DataFrame
        The same columns; within a partition, in the order of arrival.

    Raises
    ------
    ConfigError
        If a key is no column of `df`, or of a type whose equal values may differ in their bytes
        (maps, variants, strings with a collation), two columns have one name, or `n` is out of
        range.

    Examples
    --------
    >>> scored = clonos.map_in_arrow(events, score, "id long, score double")  # doctest: +SKIP
    >>> by_id = clonos.exchange(scored, 8, "id")  # doctest: +SKIP
    >>> totals = clonos.map_in_arrow(by_id, total, "id long, total double")  # doctest: +SKIP
    """
    return exchange_with(None, df, n, *keys, uid=uid)


def exchange_with(
    timers: DataFrame | None,
    df: DataFrame,
    n: int | Column | str | None,
    *keys: Column | str,
    uid: str | None = None,
) -> DataFrame:
    """As `exchange`; in the batches of the stream `timers`, what is behind it runs without rows."""
    given: tuple[Any, ...] = keys
    if isinstance(n, int):
        partitions = n
    else:
        partitions = int(df.sparkSession.conf.get(SHUFFLE_PARTITIONS) or 1)
        given = keys if n is None else (n, *keys)
    _check(df, partitions)
    names, computed = _key_columns(df, given)
    keyed = df.withColumns(computed) if computed else df
    for name in names:
        _check_key(str(computed.get(name, name)), keyed.schema[name].dataType)
    exchanged = _exchange(timers, keyed, partitions, names, uid)
    return exchanged.drop(*computed) if computed else exchanged


def _exchange(
    timers: DataFrame | None,
    df: DataFrame,
    partitions: int,
    names: tuple[str, ...],
    uid: str | None,
) -> DataFrame:
    schema = arrow_schema(df.schema)
    label = f"exchange({', '.join(names)}; {partitions})"
    made = _made(df)
    if made is None or made.func is None:
        # No operator of ours before it: what sends the frames has a name and a log of its own.
        made = _read(df, spec_of(None, uid or label))
    sender = made.spec.use
    indices = tuple(schema.get_field_index(name) for name in names)
    body = _body(made, Ends(made.sender, schema, indices, partitions))
    frames = made.source.mapInArrow(body, FRAME_SCHEMA)
    if timers is not None:
        # One more task of the sender, so that whoever counts its tasks finds all of them.
        silent = _body(
            Made(timers, None, _nothing, made.spec), Ends(None, schema, indices, partitions)
        )
        frames = frames.union(timers.mapInArrow(silent, FRAME_SCHEMA))
    frames = frames.repartitionById(partitions, "pid")
    gathered = Made(
        frames, sender, None, spec_of(None, f"{uid or sender.operator + '|' + label}.in")
    )
    return _remember(gathered, df.schema)


def _read(df: DataFrame, spec: OperatorSpec) -> Made:
    """Rows of Spark's own. ``mapInArrow`` finds no column with a dot or a quote in its name."""
    names = df.columns
    if not any("." in name or "`" in name for name in names):
        return Made(df, None, None, spec)

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.rename_columns(names)

    return Made(df.toDF(*[f"_{at}" for at in range(len(names))]), None, renamed, spec)


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


def map_stage(
    df: DataFrame,
    func: ArrowFunction,
    schema: StructType | str,
    uid: str | None,
    spec: OperatorSpec | None = None,
) -> DataFrame:
    """Run `func` over partitions, in one task with the exchange before it, if there is one.

    `spec` describes the operator where the function alone does not.
    """
    made = _made(df)
    source, sender = (
        (df, None) if made is None or made.func is not None else (made.source, made.sender)
    )
    return _remember(Made(source, sender, func, spec or spec_of(func, uid)), schema)


def _remember(made: Made, schema: StructType | str) -> DataFrame:
    session = _attached.current()
    if session is not None and made.source.isStreaming:
        session.watch(made.source.sparkSession)
    df = made.source.mapInArrow(_body(made, Ends(made.sender)), schema)
    # Not a column: an attribute of this one Python object, gone with it.
    object.__setattr__(df, _MEMORY, made)
    return df


def _made(df: DataFrame) -> Made | None:
    """How `df` was made, or ``None`` if it is to be read as it is.

    A cached DataFrame is: whoever caches it wants its rows, not that they are computed again.
    """
    # Other attributes that there are not are columns, over Spark Connect.
    made: Made | None = vars(df).get(_MEMORY)
    if made is None:
        return None
    level = df.storageLevel
    return None if level.useMemory or level.useDisk or level.useOffHeap else made


def _body(made: Made, ends: Ends) -> Any:
    spec, func = made.spec, made.func

    def body(
        batches: Iterator[pa.RecordBatch], *, _libraries: Libraries = LIBRARIES
    ) -> Iterator[pa.RecordBatch]:
        from clonos._worker import stage_runner

        return stage_runner.run(spec, func, ends, batches)

    return body


def _key_columns(df: DataFrame, keys: tuple[Any, ...]) -> tuple[tuple[str, ...], dict[str, Column]]:
    """Names of the key columns, and those among them that must be computed first."""
    from pyspark.sql import Column

    names: list[str] = []
    computed: dict[str, Column] = {}
    for key in keys:
        if not isinstance(key, Column | str):
            message = f"key {key!r} is no column; the number of partitions comes before the keys"
            raise ConfigError(message, "CONFIG")
        name = key if isinstance(key, str) else str(key).removeprefix("Column<'").removesuffix("'>")
        called = column_called(df, name)
        if called is None:
            called = f"{_COMPUTED}{len(computed)}"
            computed[called] = _resolved(df, key) if isinstance(key, str) else key
        names.append(called)
    return tuple(names), computed


def _resolved(df: DataFrame, key: str) -> Column:
    """What Spark takes a name for that no column has: a quoted one, or a field of a struct."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    column = functions.col(key)
    try:
        # Over Spark Connect nothing is resolved before somebody asks for the schema.
        _ = df.withColumn(_COMPUTED, column).schema
    except AnalysisException as error:
        message = f"key {key!r} is not one of the columns {df.columns}"
        raise ConfigError(message, "CONFIG") from error
    return column


def _check_key(shown: str, kind: DataType) -> None:
    """Refuse keys of which equal ones would not come together: partitions go by their bytes."""
    reason = _unequal(kind)
    if reason is not None:
        message = f"key {shown!r} is of type {kind.simpleString()}: {reason}"
        raise ConfigError(message, "CONFIG")


def _unequal(kind: DataType) -> str | None:
    """Why equal values of a type may differ in their bytes, and what to do; ``None`` if not."""
    from pyspark.sql import types

    if isinstance(kind, types.StringType) and not kind.isUTF8BinaryCollation():
        return (
            f"texts that {kind.collation} takes for equal would go to different partitions. Key by "
            "what is the same in all of them, under UTF8_BINARY, such as "
            "F.collate(F.lower(column), 'UTF8_BINARY')"
        )
    if isinstance(kind, types.MapType):
        return (
            "maps that hold the same in another order would go to different partitions. Key by "
            "F.array_sort(F.map_entries(column))"
        )
    if isinstance(kind, types.VariantType):
        return "variants have no equality. Key by a part of it, with F.variant_get"
    if isinstance(kind, types.UserDefinedType):
        return _unequal(kind.sqlType())
    inner: list[DataType] = []
    if isinstance(kind, types.ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, types.StructType):
        inner = [field.dataType for field in kind.fields]
    return next((reason for reason in map(_unequal, inner) if reason), None)


def _check(df: DataFrame, partitions: int) -> None:
    columns = df.columns
    if not columns:
        message = "a DataFrame without columns cannot be exchanged"
        raise ConfigError(message, "CONFIG")
    for name in columns:
        if columns.count(name) > 1:
            message = (
                f"{columns.count(name)} columns are called {name!r}: give each a name of its own "
                "before the exchange, with withColumnRenamed or toDF"
            )
            raise ConfigError(message, "CONFIG")
    if isinstance(partitions, bool) or not 1 <= partitions <= PARTITIONS_MAX:
        message = f"n={partitions!r} is not between 1 and {PARTITIONS_MAX}"
        raise ConfigError(message, "CONFIG")
