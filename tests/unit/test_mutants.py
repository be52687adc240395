"""Faults that are put back still fit the code, and the tests that notice them are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))

import run  # noqa: E402

FAULTS = run.faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number}: {fault.name}")
def test_it_fits_the_code(fault: run.Fault) -> None:
    assert fault.put_back((ROOT / fault.file).read_text())
    name = fault.noticed_by.removesuffix(" -- --exact").split("[")[0].split()[-1].split("::")[-1]
    language, define = (".py", "def") if fault.noticed_by.startswith("pytest") else (".rs", "fn")
    places = (ROOT / folder for folder in ("src", "tests"))
    files = (file for place in places for file in place.rglob(f"*{language}"))
    assert any(re.search(rf"\b{define} {name}\b", file.read_text()) for file in files)


def test_all_that_were_found_are_put_back() -> None:
    assert {fault.number for fault in FAULTS} == set(range(1, 20))
