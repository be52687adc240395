"""What the driver's agent is told of borders, for tests that look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from epochs import drawn
from pyspark.sql import functions

import clonos
from clonos._driver import attach
from clonos._driver.borders import stage_borders


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Borders that the driver's agent is told, one after the other."""
    found: list[int | None] = []

    def noted(*arguments: Any) -> Any:
        of_use = stage_borders(*arguments)

        def of_noted(*use: Any) -> Any:
            cut = of_use(*use)
            found.append(None if cut is None else cut[0])
            return cut

        return of_noted

    monkeypatch.setattr(attach, "stage_borders", noted)
    return found


@pytest.fixture
def session(plain_spark: Any, told: list[int | None]) -> Iterator[Any]:
    with clonos.attach(plain_spark) as attached:
        yield attached


@pytest.fixture
def borders(session: Any, told: list[int | None]) -> Callable[[Any], int]:
    """Return what gives the borders of a query with one causal function, in an epoch of its own."""
    numbers = count()

    def of_query(df: Any) -> int:
        told.clear()
        with session.epoch(f"borders {next(numbers)}"):
            df.collect()
        # More than one stage may run the function, over the same rows.
        assert len(set(told)) == 1
        assert told[0] is not None
        return told[0]

    return of_query


def named(borders: int) -> int:
    """What is left without the places of columns."""
    return borders % 2**32 >> 17


def cut(borders: int) -> int:
    """What is left without the choice of rows: some may be left out below the function."""
    return borders & ~(2**17 - 2)


def placed(borders: int) -> int:
    return borders >> 32


def asked(df: Any) -> Any:
    return df.withColumn("v", drawn("id"))


def choice(borders: int) -> int:
    """Which rows come."""
    return borders >> 2 & 2**15 - 1


def plain(name: str) -> Any:
    return functions.udf(lambda x: x, "long")(name)
