"""What all tests share: hypothesis profiles, a place for files. Spark's are in tests/spark."""

from __future__ import annotations

import os
import sys
import time
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
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# With its classes in an archive, Spark starts in about 0.6 of the time; without one, as ever.
ARCHIVE = Path(sys.prefix) / "spark.jsa"
if ARCHIVE.exists() and ARCHIVE.stat().st_size:
    JAVA_OPTIONS += f' "-XX:SharedArchiveFile={ARCHIVE}" -Xlog:cds=off -Xlog:cds+dynamic=off'
os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)

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
# Files that look closer at what others, above all test_features.py, try once.
LONG_FILES = {
    "test_async_progress.py",
    "test_borders.py",
    "test_borders_told.py",
    "test_call_options.py",
    "test_chosen_rows.py",
    "test_dealt.py",
    "test_groups.py",
    "test_initial_state.py",
    "test_kinds.py",
    "test_like_plain.py",
    "test_memory.py",
    "test_ordinary.py",
    "test_ordinary_functions.py",
    "test_pieces.py",
    "test_relaid_rows.py",
    "test_row_keys.py",
    "test_row_order.py",
    "test_savepoints.py",
    "test_sources.py",
    "test_stage_borders.py",
    "test_steps.py",
    "test_udtf.py",
}


# What takes longest begins first, and what nothing else looks at.
FOLDERS = ["kill", "connect", "docs", "sinks", "sources", "spark", "unit", "hosts", "yarn"]
# When tests must have begun, in seconds since 1970: those that have not are skipped.
LAST_BEGIN = "CLONOS_TESTS_BEGIN_BEFORE"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder; `whole` is what `make test` leaves to `make test-all`."""
    places = {folder: place for place, folder in enumerate(FOLDERS)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(FOLDERS)))
    for item in items:
        folder, name = item.path.parent.name, getattr(item, "originalname", item.name)
        if folder in places:
            item.add_marker(folder)
        long = folder in WHOLE or item.path.name in LONG_FILES
        if long and name not in QUICK_KILLS:
            item.add_marker("whole")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip what a slow machine has no time for: before any fixture is made."""
    before = os.environ.get(LAST_BEGIN)
    if before and time.time() > float(before):
        pytest.skip("no time is left on this machine: `make test-all` runs it")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def session_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for the whole run: Spark's warehouse, sockets (the path is short), logs."""
    return tmp_path_factory.mktemp("run")
