"""The plan of an execution is told whole, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from clonos._driver import plans
from clonos._driver.spark_plans import PlannedFunction
from clonos._uses import new_use


def test_a_plan_that_breaks_off_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    use = new_use("f", 7)
    breaks_off = [True, False]

    def functions(_self: Any, execution: int) -> list[PlannedFunction]:
        if execution == 2 and breaks_off.pop(0):
            raise RuntimeError
        return [PlannedFunction(use.mark.encode(), "f", execution, 0, 0, 0, 0)]

    monkeypatch.setattr(plans.Plans, "__init__", lambda *_: None)
    monkeypatch.setattr(plans.Plans, "functions", functions)
    of_execution = plans.plan_uses(None, lambda _: None)  # type: ignore[arg-type]
    assert of_execution(2, 1) is None
    known = of_execution(2, 1)
    assert known is not None
    assert [use[5] for use in known] == [1, 2]
