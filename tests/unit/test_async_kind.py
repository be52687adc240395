"""What is kept of a batch of coroutines when one of them fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType

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
