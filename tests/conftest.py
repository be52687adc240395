"""What all tests share: hypothesis profiles, a place for files. Spark's are in tests/spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Deadlines are off: a laptop that compiles beside the tests is not a failure.
settings.register_profile("default", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
settings.register_profile(
    "thorough",
    max_examples=5000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A JVM that lives for a minute gains nothing from the second compiler, which takes a third of the
# time on two cores. Its children inherit this.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Folders of tests that start whole programs or servers, or kill for minutes. One kill of each kind
# stays with the quick ones.
WHOLE = {"connect", "docs", "kill", "sinks", "sources"}
QUICK_KILLS = {
    "test_an_executor_is_lost_with_its_agent",
    "test_an_agent_is_lost_alone",
    "test_a_python_worker_dies_in_the_middle_of_a_partition",
    "test_lost_senders_are_replayed_and_only_they",
    "test_an_epoch_that_fails_goes_on_with_what_it_has_recorded",
}
# Files of tests/spark that look closer at what others, above all test_features.py, try once.
LONG_FILES = {
    "test_async_progress.py",
    "test_borders.py",
    "test_call_options.py",
    "test_groups.py",
    "test_kinds.py",
    "test_like_plain.py",
    "test_ordinary.py",
    "test_ordinary_functions.py",
    "test_pieces.py",
    "test_sources.py",
    "test_steps.py",
    "test_udtf.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder; `whole` is what `make test` leaves to `make test-all`."""
    for item in items:
        folder, name = item.path.parent.name, getattr(item, "originalname", item.name)
        if folder in {"connect", "unit", "spark", "kill", "sinks", "sources", "docs", "hosts"}:
            item.add_marker(folder)
        long = folder in WHOLE or item.path.name in LONG_FILES
        if long and name not in QUICK_KILLS:
            item.add_marker("whole")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def session_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for the whole run: Spark's warehouse, sockets (the path is short), logs."""
    return tmp_path_factory.mktemp("run")
