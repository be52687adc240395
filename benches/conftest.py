"""Benchmarks that are run once, as a test that they still work, take a twentieth of the rows."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _few_rows(
    request: pytest.FixtureRequest, benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = getattr(request.module, "ROWS", None)
    if isinstance(rows, int) and not benchmark.enabled:
        monkeypatch.setattr(request.module, "ROWS", rows // 20)
