"""Errors: found in what Spark raises, and each with a section on the page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import clonos
from clonos import errors

CLASSES = {name for name in errors.__all__ if name not in {"find", "NotRecordedWarning"}}
# What PySpark prints of an exception in a worker, shortened.
WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "clonos/_worker/connection.py", line 44, in open_task
clonos.errors.AgentError: [AGENT_UNREACHABLE] agent 3 cannot be reached: connection refused

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "clonos/_worker/lost.py", line 38, in check_lost
clonos.errors.CausalLogLost: [CAUSAL_LOG_LOST] the log of task f@batch/a/0 is lost
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(x.scala:1)
"""


def raised_in_python(path: Path) -> set[str]:
    """Conditions of the errors that a file makes: the second argument of their classes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and len(node.args) > 1:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            condition = node.args[1]
            if name in CLASSES and isinstance(condition, ast.Constant):
                found.add(str(condition.value))
    return found


def test_each_condition_has_a_section_and_each_section_a_condition(repository: Path) -> None:
    core = (repository / "src" / "error" / "kinds.rs").read_text()
    names = core[core.index("fn condition(&self)") : core.index("fn is_retryable")]
    conditions = set(re.findall(r'=> "([A-Z_]+)"', names)) | {"INTERNAL"}
    for path in (repository / "python" / "clonos").rglob("*.py"):
        conditions |= raised_in_python(path)
    page = (repository / "docs" / "errors.md").read_text()
    sections = re.findall(r"^## (\w+)\n\n(.+)", page, re.MULTILINE)
    assert [name for name, _ in sections] == sorted(conditions)
    for name, text in sections:
        kind = re.match(r"`(\w+)`", text)
        assert kind is not None, name
        assert kind[1] in CLASSES, name


def test_the_error_is_found_in_the_text_of_a_worker() -> None:
    spark = RuntimeError(WORKER)
    found = errors.find(spark)
    assert isinstance(found, errors.CausalLogLost)
    assert found.condition == "CAUSAL_LOG_LOST"
    assert found.message == "the log of task f@batch/a/0 is lost"
    assert found.__cause__ is spark


def test_the_error_is_found_in_what_an_exception_was_raised_from() -> None:
    ours = errors.ConfigError("memory='x' is not a size", "CONFIG")
    above = KeyError("x")
    above.__cause__ = ValueError("y")
    above.__cause__.__context__ = ours
    assert errors.find(above) is ours
    assert errors.find(ours) is ours


@pytest.mark.parametrize(
    "exc", [None, KeyError("x"), RuntimeError("clonos.errors.Nothing: [NOTHING] x")]
)
def test_what_is_not_ours_is_not_found(exc: BaseException | None) -> None:
    assert clonos.errors.find(exc) is None


def test_an_exception_that_is_raised_from_itself_ends() -> None:
    error = KeyError("x")
    error.__context__ = ValueError("y")
    error.__context__.__context__ = error
    assert errors.find(error) is None
