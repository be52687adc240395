"""Which columns a call of a causal function hands over, and how the function is given them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clonos._operators.columns import readable

if TYPE_CHECKING:
    from pyspark.sql import Column

ALL_COLUMNS = "*"
# By way of text: Spark hashes neither maps nor variants. JSON tells fields apart, and null from the
# word; a cast has each value in full.
_HASH_OF_ROW = (
    "xxhash64(to_json(struct(*), map('ignoreNullFields', 'false')), cast(struct(*) as string))"
)
ColumnOrName = Any


@dataclass(frozen=True, slots=True)
class Binding:
    """What one call passes: `columns` are its arguments, then what identifies the row.

    The last arguments are passed by the names in `keywords`. Defaults are left to the function:
    they are values, not columns. `types` are Spark's, as JSON, of those arguments whose type Arrow
    does not tell (user-defined types); ``None`` for the others. There always is a column, as
    Spark's iterator UDFs need one to count rows by.
    """

    columns: tuple[Any, ...]
    arguments: int
    keywords: tuple[str, ...]
    keyed: bool
    types: tuple[str | None, ...]

    @property
    def shape(self) -> tuple[Any, ...]:
        """What distinguishes the bodies of two calls of one function."""
        return self.arguments, self.keywords, self.keyed, self.types


def name_columns(arguments: list[Any]) -> bool:
    """Whether arguments name columns, as those of PySpark's functions: none are, or one is."""
    from pyspark.sql import Column

    return all(isinstance(argument, str) for argument in arguments) or any(
        isinstance(argument, Column) for argument in arguments
    )


def bind_columns(
    args: Sequence[ColumnOrName], kwargs: dict[str, ColumnOrName], row_key: Any
) -> Binding:
    """Bind a call with columns, or names of columns, as for any UDF."""
    passed = [readable(column) for column in (*args, *kwargs.values())]
    keys = _key_columns(row_key)
    return Binding(
        columns=(*(column for column, _ in passed), *keys) or (_constant(),),
        arguments=len(passed),
        keywords=tuple(kwargs),
        keyed=bool(keys),
        types=tuple(kind for _, kind in passed),
    )


def _key_columns(row_key: Any) -> list[Any]:
    if row_key is None:
        return []
    from pyspark.sql import functions

    if isinstance(row_key, str) and row_key == ALL_COLUMNS:
        return [functions.expr(_HASH_OF_ROW)]
    if isinstance(row_key, Sequence) and not isinstance(row_key, str):
        return list(row_key)
    return [row_key]


def _constant() -> Column:
    """A column for functions without arguments, which shows as nothing in names of columns."""
    from pyspark.sql import functions

    return functions.lit("")
