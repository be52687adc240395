"""What needs neither Spark nor an agent: services outside a task, settings, errors, the command."""

from __future__ import annotations

import asyncio
import doctest
import functools
import json
import pickle
import random
import re
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import clonos
from clonos import _asks, _config, _core, _services, causal, errors
from clonos import idempotency_key as new_key
from clonos.cli.commands import app
from clonos.errors import ClonosError, ConfigError

GOLDEN = Path(__file__).parents[1] / "golden" / "segments" / "v4"


def test_outside_a_task_services_are_the_plain_thing() -> None:
    assert abs(clonos.time() - time.time()) < 5
    assert 0 <= clonos.random.random() < 1
    assert clonos.random.choice([3]) == 3
    assert isinstance(clonos.uuid4(), uuid.UUID)
    assert clonos.uuid4() != clonos.uuid4()
    assert len(clonos.token_bytes(5)) == 5
    assert clonos.call(len, "four") == 4
    assert clonos.service(len)("four") == 4
    assert 0 <= clonos.numpy_rng().integers(10) < 10
    assert clonos.idempotency_key() != clonos.idempotency_key()
    assert pickle.loads(pickle.dumps(clonos.random)) is clonos.random


def test_outside_spark_a_causal_function_is_the_function() -> None:
    @causal("long", uid="plus")
    def plus(left: int, right: int = 1) -> int:
        return left + right

    assert plus(2) == 3
    assert plus(2, right=5) == 7
    assert "plus" in repr(plus)
    assert pickle.loads(pickle.dumps(plus.uid)) == "plus"

    @causal
    async def later(word: str) -> str:
        return word

    assert asyncio.run(later("x")) == "x"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"record": "all"}, "record"),
        ({"flush": "never"}, "flush"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 2}, "async def"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        causal("long", **options)(lambda n: n)


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 512 << 20), ("1g", 1 << 30), (4096, 4096), ("1.5k", 1536)]
)
def test_sizes_are_read(text: int | str, size: int) -> None:
    assert _config.parse_size("memory", text) == size


@pytest.mark.parametrize("text", ["", "many", -1, True, "5 XB"])
def test_what_is_no_size_is_refused_by_name(text: int | str) -> None:
    with pytest.raises(ConfigError, match="memory="):
        _config.parse_size("memory", text)


def test_sharing_depth_is_a_number_or_full() -> None:
    assert _config.parse_depth(2) == 2
    assert _config.parse_depth("full") == _config.FULL_DEPTH
    with pytest.raises(ConfigError, match="sharing_depth"):
        _config.parse_depth(-1)


def helper() -> str:
    return clonos.idempotency_key()


class Base:
    """Asks for keys in a property, which others inherit."""

    @property
    def key(self) -> str:
        return str(new_key())


class Payer(Base):
    """Asks for keys in a method of its own."""

    def pay(self) -> str:
        return self._with(new_key)

    def _with(self, key: Any) -> str:
        return str(key())


class Inherits(Base):
    pass


class Holds:
    def __init__(self, payer: Any) -> None:
        self.payer = payer


payer, heir, holder = Payer(), Inherits(), Holds(Payer())


@pytest.mark.parametrize(
    "fn",
    [
        lambda: helper(),  # noqa: PLW0108
        lambda: new_key(),  # noqa: PLW0108
        lambda: payer.pay(),  # noqa: PLW0108
        payer.pay,
        lambda: heir.key,
        lambda: holder.payer.pay(),  # noqa: PLW0108
        functools.partial(lambda key: key(), new_key),
        lambda key=new_key: key(),
    ],
)
def test_who_may_ask_for_a_key_is_found(fn: Any) -> None:
    assert _asks.asks_for_keys(fn)


def test_who_calls_only_what_is_of_python_asks_for_no_key() -> None:
    assert not _asks.asks_for_keys(lambda: json.dumps(random.random()))


def test_every_error_is_one_of_ours_with_a_condition() -> None:
    classes = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]
    classes.remove(errors.NotRecordedWarning)
    assert all(issubclass(cls, ClonosError) for cls in classes)
    assert len(classes) >= 10
    error = errors.ReplayDivergence("text", "REPLAY_DIVERGENCE")
    assert (str(error), error.condition) == ("[REPLAY_DIVERGENCE] text", "REPLAY_DIVERGENCE")
    assert pickle.loads(pickle.dumps(error)).condition == "REPLAY_DIVERGENCE"


@pytest.mark.parametrize("module", [clonos, _services, errors])
def test_examples_in_docstrings_run(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_the_causal_example_runs() -> None:
    finder = doctest.DocTestFinder()
    from clonos._operators import udf

    tests = finder.find(udf.causal, "causal", globs={"clonos": clonos})
    assert sum(len(test.examples) for test in tests) >= 3
    assert all(doctest.DocTestRunner().run(test).failed == 0 for test in tests)


def test_inspect_shows_a_segment_and_names_what_is_wrong_with_another() -> None:
    runner = CliRunner()
    whole = runner.invoke(app, ["inspect", str(GOLDEN / "whole.seg"), "--json"])
    assert whole.exit_code == 0, whole.output
    assert "determinants" in whole.output
    corrupt = runner.invoke(app, ["inspect", str(GOLDEN / "corrupt_record.seg")])
    assert corrupt.exit_code == 1
    assert "byte" in corrupt.output


def test_doctor_checks_this_machine(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["doctor", "--checkpoint-dir", str(tmp_path)])
    # Where a line breaks depends on how long the folder's name is.
    assert "synced write" in " ".join(found.output.split())
    assert "Java" in found.output


def test_the_core_is_a_release_build_or_says_so() -> None:
    assert _core.build_profile() in ("release", "debug")


@pytest.mark.parametrize(
    ("text", "millis"),
    [("120s", 120_000), ("90", 90_000), ("2min", 120_000), ("1H", 3_600_000), (" 500 ms ", 500)],
)
def test_sparks_network_timeout_is_followed(text: str, millis: int) -> None:
    assert _config.parse_network_timeout(text) == millis


@pytest.mark.parametrize(("text", "epochs"), [("100", 100), (" 1 ", 1)])
def test_as_many_epochs_of_state_are_kept_as_spark_keeps_batches(text: str, epochs: int) -> None:
    assert _config.parse_retained(text) == epochs


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_a_number_of_epochs_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="minBatchesToRetain"):
        _config.parse_retained(text)


def test_standbys_are_refused_by_their_own_name() -> None:
    assert _config.parse_depth(0, "standbys") == 0
    with pytest.raises(ConfigError, match="standbys"):
        _config.parse_depth(-1, "standbys")


@pytest.mark.parametrize("text", ["", "0", "-3s", "soon", "1.5s", "10us"])
def test_a_network_timeout_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("spark.network.timeout")):
        _config.parse_network_timeout(text)
