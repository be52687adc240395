"""What benchmarks share: fewer rows where they only run once, and speeds beside the plain way."""

from __future__ import annotations

from typing import Any

import pytest

_RATIOS = pytest.StashKey[dict[str, float]]()


@pytest.fixture(autouse=True)
def _few_rows(
    request: pytest.FixtureRequest, benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take a twentieth of the rows where benchmarks run once, as a test that they still work."""
    rows = getattr(request.module, "ROWS", None)
    if isinstance(rows, int) and not benchmark.enabled:
        monkeypatch.setattr(request.module, "ROWS", rows // 20)


@pytest.fixture
def ratios(pytestconfig: pytest.Config) -> dict[str, float]:
    """Speeds, as multiples of the plain way's, to be printed at the end."""
    return pytestconfig.stash.setdefault(_RATIOS, {})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the ratios."""
    if ratios := config.stash.get(_RATIOS, {}):
        terminalreporter.section("speed, where the plain way is 1")
        for name, ratio in ratios.items():
            terminalreporter.line(f"{ratio:6.2f}  {name}")
