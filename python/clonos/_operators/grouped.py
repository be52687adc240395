"""What a ``GroupedData`` groups by, which it does not show.

========================================================= =============
private name of Spark's                                   seen in
========================================================= =============
``GroupedData._df``, ``GroupedData._jgd``                 4.1, 4.2, 4.3
``RelationalGroupedDataset.groupingExprs``                4.3
``ExpressionUtils.column``                                4.1, 4.2, 4.3
========================================================= =============
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clonos._operators.columns import column_of
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, GroupedData

    Grouped = GroupedData | tuple[DataFrame, Sequence[Column | str]]

CASE_SENSITIVE = "spark.sql.caseSensitive"


@dataclass(frozen=True)
class Key:
    """A column to group by: of the DataFrame, or computed (`column`); `shown` is its given name."""

    name: str
    column: Column | None
    shown: str


def grouping(grouped: Grouped, what: str = "state") -> tuple[DataFrame, list[Key]]:
    """Return the DataFrame and the keys of a grouping, or of a DataFrame and its keys.

    Errors say that `what` needs them.

    Raises
    ------
    ConfigError
        If it is neither, there are no keys, or Spark does not tell them.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql import GroupedData as AnyGrouped

    made: Any = grouped
    if isinstance(made, tuple) and len(made) == len(("df", "keys")):
        df, named = made
        if isinstance(df, DataFrame):
            # A single one, too.
            made = df.groupBy(*(named if isinstance(named, list | tuple) else [named]))
    if not isinstance(made, AnyGrouped) or not hasattr(made, "_jgd"):
        message = (
            f"{what} is kept by keys, and {type(grouped).__name__} has none: give df.groupBy('id') "
            "of a classic session, or the pair (df, ['id'])"
        )
        raise ConfigError(message, "CONFIG")
    df = made._df
    keys = [_key(df, expression) for expression in _expressions(made._jgd)]
    if not keys:
        message = f"{what} needs a key: group by at least one column"
        raise ConfigError(message, "CONFIG")
    return df, keys


def _expressions(jgrouped: Any) -> list[Any]:
    from py4j.protocol import Py4JError

    try:
        found = jgrouped.groupingExprs()
        return [found.apply(at) for at in range(found.size())]
    except Py4JError as error:
        message = (
            "this version of Spark does not tell what a GroupedData groups by: give the pair "
            "(df, ['id']) in its place"
        )
        raise ConfigError(message, "CONFIG") from error


def _key(df: DataFrame, expression: Any) -> Key:
    kind = expression.getClass().getSimpleName()
    if kind in {"AttributeReference", "UnresolvedAttribute"}:
        shown = str(expression.name()).strip("`")
        name = column_called(df, shown)
        if name is not None:
            return Key(name, None, shown)
    column = column_of(expression)
    shown = df.select(column).columns[0]
    return Key(shown, column, shown)


def column_called(df: DataFrame, name: str) -> str | None:
    """The column of `df` that is meant by `name`, as Spark resolves it."""
    columns = df.columns
    if name in columns:
        return name
    if str(df.sparkSession.conf.get(CASE_SENSITIVE)).lower() == "true":
        return None
    return next((column for column in columns if column.lower() == name.lower()), None)
