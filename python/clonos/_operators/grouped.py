"""What a ``GroupedData`` groups by, which it does not show.

========================================================= =============
private name of Spark's                                   seen in
========================================================= =============
``GroupedData._df``, ``GroupedData._jgd``                 4.1, 4.2, 4.3
``connect.GroupedData._grouping_cols``, ``_group_type``   4.3
``connect.Column._expr``, ``ColumnReference``             4.3
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

    made: Any = grouped
    if isinstance(made, tuple) and len(made) == len(("df", "keys")):
        df, named = made
        if isinstance(df, DataFrame):
            # A single one, too.
            made = df.groupBy(*(named if isinstance(named, list | tuple) else [named]))
    # A DataFrame of Spark Connect has any attribute.
    is_frame = isinstance(made, DataFrame)
    if not is_frame and hasattr(made, "_jgd"):
        keys = [_key(made._df, expression) for expression in _expressions(made._jgd)]
    elif not is_frame and getattr(made, "_group_type", None) == "groupby":
        keys = [_key_of_client(made._df, column) for column in made._grouping_cols]
    else:
        message = (
            f"{what} is kept by keys, and {type(grouped).__name__} has none: give df.groupBy('id'),"
            " or the pair (df, ['id'])"
        )
        raise ConfigError(message, "CONFIG")
    if not keys:
        message = f"{what} needs a key: group by at least one column"
        raise ConfigError(message, "CONFIG")
    return made._df, keys


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
    is_name = kind in {"AttributeReference", "UnresolvedAttribute"}
    called = _called(df, str(expression.name())) if is_name else None
    return called or _computed(df, column_of(expression))


def _key_of_client(df: DataFrame, column: Any) -> Key:
    is_name = type(column._expr).__name__ == "ColumnReference"
    called = _called(df, column._expr.name()) if is_name else None
    return called or _computed(df, column)


def _called(df: DataFrame, written: str) -> Key | None:
    shown = written.strip("`")
    name = column_called(df, shown)
    return None if name is None else Key(name, None, shown)


def _computed(df: DataFrame, column: Column) -> Key:
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
