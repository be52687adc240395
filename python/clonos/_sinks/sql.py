"""Pieces of SQL that databases share."""

from __future__ import annotations

from pyspark.sql.types import StructType

from clonos._sinks.options import refuse


def quoted(name: str) -> str:
    """Return `name` as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def check_key(key: list[str], schema: StructType) -> list[str]:
    """Return `key` if all of it are columns.

    Raises
    ------
    ConfigError
        Names the columns there are.
    """
    names = schema.fieldNames()
    for name in key:
        if name not in names:
            raise refuse("key", name, f"the rows have no such column, but {', '.join(names)}")
    return key


def insert_statement(table: str, names: list[str], source: str, key: list[str]) -> str:
    """Return an INSERT of `source` that replaces the rows of the same key, if there is one.

    Parameters
    ----------
    table : str
        The table, quoted.
    names : list of str
        Its columns.
    source : str
        ``VALUES ...`` or ``SELECT ...``.
    key : list of str
        Columns that tell rows apart; none: rows are added.
    """
    into = f"INSERT INTO {table} ({', '.join(map(quoted, names))}) {source}"
    if not key:
        return into
    rest = [f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name not in key]
    action = f"UPDATE SET {', '.join(rest)}" if rest else "NOTHING"
    return f"{into} ON CONFLICT ({', '.join(map(quoted, key))}) DO {action}"
