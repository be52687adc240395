"""What is kept of a batch of coroutines when one of them fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType

import clonos
from clonos._worker import async_kind
from clonos._worker.answers import Answers
from clonos._worker.async_kind import AsyncKind
from clonos._worker.rows import RowCodec


def kept_of(fn: Any, codec: RowCodec, rows: int, *, each: bool = False) -> dict[int, Any]:
    """Run `fn` over some numbers, all at a time; the answers that were kept, by row."""
    kept: dict[int, Any] = {}

    def keep(places: list[int], values: pa.Array) -> None:
        kept.update(zip(places, values.to_pylist(), strict=True))

    answers = Answers(keep, each=each)
    kind = AsyncKind(fn, codec, 1, rows)
    with pytest.raises(Exception):  # noqa: B017 - whatever it raised
        kind.run([pa.array(range(rows))], lambda _row, _call: "key", answers)
    answers.rescue()
    kind.close()
    return kept


def test_what_a_cancelled_call_falls_back_to_is_no_answer(monkeypatch: Any) -> None:
    monkeypatch.setattr(async_kind, "FINISH_SECONDS", 0.1)

    async def ask(row: int) -> str:
        if row == 0:
            raise ConnectionError
        if row == 1:
            return "answer"
        try:
            await asyncio.sleep(60)
        except BaseException:
            return "fallback"
        return "too late"

    assert kept_of(ask, RowCodec(StringType()), 4) == {1: "answer"}


def test_a_value_that_has_no_place_does_not_cost_the_others_theirs() -> None:
    async def ask(row: int) -> Any:
        await asyncio.sleep(0.01 if row == 0 else 0.2)
        return object() if row == 0 else row

    assert kept_of(ask, RowCodec(LongType()), 3, each=True) == {1: 1, 2: 2}


@pytest.mark.parametrize("tells_rows", [True, False])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_key_is_that_of_the_row_that_asks(tells_rows: bool, concurrency: int) -> None:
    async def ask(row: int) -> str:
        await asyncio.sleep(0.001 * (5 - row))
        mine = clonos.idempotency_key()
        return f"{row} {mine} {await asyncio.create_task(later())}"

    async def later() -> str:
        return clonos.idempotency_key()

    kind = AsyncKind(ask, RowCodec(StringType()), 1, concurrency, tells_rows=tells_rows)
    values = kind.run([pa.array(range(5))], lambda row, call: f"{row}-{call}")
    kind.close()
    assert values.to_pylist() == [f"{row} {row}-0 {row}-1" for row in range(5)]


def test_what_a_call_leaves_behind_still_asks_for_its_row() -> None:
    asked: dict[int, asyncio.Task[str]] = {}

    async def late() -> str:
        await asyncio.sleep(0.05)
        return clonos.idempotency_key()

    async def ask(row: int) -> str:
        asked[row] = asyncio.create_task(late())
        # Only the last one waits, until the others have been done for a while.
        return "" if row < 2 else " ".join(await asyncio.gather(*asked.values()))

    kind = AsyncKind(ask, RowCodec(StringType()), 1, 1)
    values = kind.run([pa.array(range(3))], lambda row, call: f"{row}-{call}")
    kind.close()
    assert values.to_pylist() == ["", "", "0-0 1-0 2-0"]
