"""The Python face of the core, without Spark: an agent in this process and a client."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import clonos
from clonos import _config, _core, _services, errors
from clonos.errors import (
    AgentError,
    AuthRefused,
    ConfigError,
    Fenced,
    ForkedProcess,
    ReplayDivergence,
)
from local_agent import SECRET, make_config, open_task, start_agent

_operators = itertools.count(1)

COLUMNS = [
    pa.array([1, None, 3]),
    pa.array(["a", "", None]),
    pa.array([1.5, float("nan"), None]),
    pa.array([True, False, None]),
    pa.array([b"x", None, b""]),
    pa.array([[1, 2], [], None]),
    pa.array([{"a": 1}, {"a": None}, None]),
    pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
    pa.array(["x", "y", "x"]).dictionary_encode(),
    pa.array([0, 1, None], pa.timestamp("us", "UTC")),
    pa.array([0, 1, None], pa.decimal128(10, 2)),
    pa.array([0, 1, None], pa.date32()),
    pa.array(["a", "b", None], pa.large_string()),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_any_type_is_recorded_and_replayed(config: Any, column: pa.Array) -> None:
    rows = pa.array(range(len(column)))
    first = open_task(config, _core.ResultTask, "types")
    plan = first.offer([rows, column])
    assert plan.live_count == len(column)
    assert plan.live is None, "all rows are live"
    # As text, because NaN equals nothing.
    assert str(first.complete(plan, column)) == str(column)
    first.publish()
    first.finish()
    again = open_task(config, _core.ResultTask, "types")
    plan = again.offer([rows, column])
    assert plan.live_count == 0
    assert str(again.complete(plan, None)) == str(column)
    assert again.finish()["replayed"] == len(column)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_was_published_is_replayed(config: Any, data: st.DataObject) -> None:
    """Any batches, any moment of death, other batches and another order the second time."""
    operator = f"op-{next(_operators)}"
    rows = list(range(data.draw(st.integers(1, 80))))
    values = {row: random.random() for row in rows}
    task = open_task(config, _core.ResultTask, operator)
    published = data.draw(st.integers(0, len(rows)))
    for row in rows[:published]:
        plan = task.offer([pa.array([row])])
        task.complete(plan, pa.array([values[row]]))
        task.publish()
    task.settle()
    task.close()
    order = data.draw(st.permutations(rows))
    size = data.draw(st.integers(1, len(rows)))
    again = open_task(config, _core.ResultTask, operator)
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        plan = again.offer([pa.array(batch)])
        live = batch if plan.live is None else [batch[i] for i in plan.live.to_pylist()]
        live = live if plan.live_count else []
        assert all(row >= published for row in live), "a recorded row is not run again"
        answers = pa.array([values[row] for row in live], pa.float64()) if live else None
        assert again.complete(plan, answers).to_pylist() == [values[row] for row in batch]
        again.publish()
    assert again.finish()["live"] == len(rows) - published


def test_services_are_given_back_in_order(config: Any) -> None:
    def ask(task: Any) -> list[Any]:
        task.begin_batch([pa.array([7, 8])])
        taken = []
        for row in range(2):
            task.begin_row(row)
            taken += [task.time_ns(), task.random(), task.getrandbits(70), task.idempotency_key()]
            recorded = task.call_begin("service")
            if recorded is None:
                recorded = (True, os.urandom(4))
                task.call_record("service", *recorded)
            taken.append(recorded)
        task.end_row()
        task.publish()
        task.finish()
        return taken

    first = ask(open_task(config, _core.ServiceTask, "services"))
    assert ask(open_task(config, _core.ServiceTask, "services")) == first


def test_what_is_not_stable_fails_whoever_learnt_of_it_first(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    agent = start_agent(config)
    task = open_task(config, _core.ServiceTask, "services")
    task.begin_batch([pa.array([7])])
    task.begin_row(0)
    task.time_ns()
    agent.stop()
    # Between batches another thread saves answers, and whoever has called it cannot tell anybody.
    with pytest.raises(AgentError):
        task.publish_answers()
    task.end_row()
    for ending in (task.publish, task.settle, task.finish):
        with pytest.raises(AgentError):
            ending()


@pytest.mark.parametrize(
    "service",
    [
        clonos.time_ns,
        clonos.random.random,
        clonos.uuid4,
        lambda: clonos.token_bytes(4),
        lambda: clonos.call(os.urandom, 4),
        clonos.numpy_rng,
    ],
)
def test_services_refuse_in_a_process_that_the_function_has_forked(
    config: Any, service: Callable[[], Any]
) -> None:
    task = open_task(config, _core.ServiceTask, "forked")
    task.begin_batch([pa.array([7])])
    task.begin_row(0)
    token = _services.current.set(_services.Scope(task))
    try:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(ForkedProcess):
                service()
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        service()
    finally:
        _services.current.reset(token)
        task.close()


def test_an_attempt_that_another_has_overtaken_does_not_end_well(config: Any) -> None:
    first = open_task(config, _core.ServiceTask, "overtaken")
    open_task(config, _core.ServiceTask, "overtaken")
    first.begin_batch([pa.array([7])])
    first.begin_row(0)
    first.time_ns()
    first.end_row()
    first.publish()
    # The user's function may have caught the first of them.
    for ending in (first.settle, first.settle, first.publish, first.finish):
        with pytest.raises(Fenced):
            ending()
    first.close()


def test_keys_are_the_same_for_every_attempt_and_differ_between_calls(config: Any) -> None:
    def keys() -> list[str]:
        task = open_task(config, _core.ResultTask, "keys")
        plan = task.offer([pa.array([5, 5, 6])])
        found = [task.key(plan, row, call) for row, call in ((0, 0), (0, 1), (1, 0), (2, 0))]
        task.close()
        return found

    first = keys()
    assert len(set(first)) == 4
    assert keys() == first


def test_a_column_used_twice_has_two_logs(config: Any) -> None:
    def recorded(attempt: int) -> list[list[int]]:
        tasks = [open_task(config, _core.ResultTask, "twice", attempt=attempt) for _ in range(2)]
        values = []
        for task in tasks:
            plan = task.offer([pa.array([1, 2])])
            live = pa.array(random.sample(range(10**6), 2)) if plan.live_count else None
            values.append(task.complete(plan, live).to_pylist())
            task.publish()
            task.finish()
        return values

    first = recorded(10**9)
    assert first[0] != first[1]
    assert recorded(10**9 + 1) == first


def test_a_wrong_secret_is_refused(config: Any, tmp_path: Path) -> None:
    with pytest.raises(AuthRefused):
        _core.Client.connect(make_config(tmp_path, secret=os.urandom(32)), config.driver_socket)


def test_nobody_there_is_an_agent_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="cannot be reached"):
        _core.Client.connect(make_config(tmp_path), str(tmp_path / "nothing.sock"))


def test_a_connection_does_not_survive_a_fork(config: Any) -> None:
    task = open_task(config, _core.ServiceTask, "forked")
    task.time_ns()
    child = os.fork()
    if child == 0:
        try:
            task.publish()
        except ForkedProcess:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    task.publish()
    task.settle()


def test_a_forked_process_has_no_end_of_a_connection(config: Any) -> None:
    """Else the agent would not see the end of a worker whose pool outlives it."""

    def sockets() -> int:
        return sum(path.readlink().name.startswith("socket:") for path in descriptors())

    def descriptors() -> list[Path]:
        return [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]

    def lost_by_a_child() -> int:
        before = sockets()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(ForkedProcess):
                client.permits("of a child", 1, 1)
                os._exit(0)
            os._exit(before - sockets())
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    client = _core.Client.connect(config, config.driver_socket)
    assert lost_by_a_child() >= 1
    assert client.permits("after the fork", 1, 1) >= 0

    # Also of one that another thread is using at that moment, as it nearly always is here.
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            client.permits("beside forks", 1, 1)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert all(lost_by_a_child() >= 1 for _ in range(10))
    finally:
        stop.set()
        asking.join()


def test_the_secret_is_in_no_repr(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    assert SECRET.hex() not in repr(config)
    assert "0, 1, 2, 3" not in repr(config)
    assert _core.SessionConfig.from_bytes(config.to_bytes()).to_bytes() == config.to_bytes()


def test_a_node_with_another_version_is_named_at_once(tmp_path: Path) -> None:
    """Before it starts an agent, which nobody would talk to."""
    version, *rest = make_config(tmp_path).to_bytes()
    with pytest.raises(errors.CorruptLog, match=rf"session has version {version + 1};.* {version}"):
        _core.SessionConfig.from_bytes(bytes([version + 1, *rest]))
    for short in (b"", b"\x0b"):
        with pytest.raises(errors.ClonosError, match="empty session configuration"):
            _core.SessionConfig.from_bytes(short)


def test_of_two_live_attempts_the_newer_goes_on_and_the_older_is_fenced(config: Any) -> None:
    """What Spark's speculation makes: a copy in another process beside a slow original."""
    slow = open_task(config, _core.ResultTask, "speculative")
    answers = {row: random.random() for row in range(6)}

    def answer(task: Any, row: int) -> float | None:
        plan = task.offer([pa.array([row])])
        live = pa.array([answers[row]]) if plan.live_count else None
        value = task.complete(plan, live)[0].as_py()
        task.publish()
        task.settle()
        assert value == answers[row]
        return None if live is None else value

    for row in range(3):
        assert answer(slow, row) is not None
    child = os.fork()
    if child == 0:
        # The copy has a connection of its own; it is given what the original had recorded.
        copy = open_task(config, _core.ResultTask, "speculative", attempt=10**8)
        replayed = [answer(copy, row) for row in range(6)]
        copy.finish()
        os._exit(7 if replayed[:3] == [None] * 3 and None not in replayed[3:] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with pytest.raises(Fenced, match="newer attempt"):
        answer(slow, 3)


def test_permits_of_a_rate_limit_are_shared_by_all_who_ask(config: Any) -> None:
    first, second = (_core.Client.connect(config, config.driver_socket) for _ in range(2))
    second_ns = 10**9
    assert first.permits("model", second_ns, 2) == 0
    assert second_ns < second.permits("model", second_ns, 1) <= 2 * second_ns
    assert second.permits("another", second_ns, 1) == 0


def test_values_that_were_kept_are_replayed_though_the_batch_was_not_completed(config: Any) -> None:
    first = open_task(config, _core.ResultTask, "kept")
    plan = first.offer([pa.array([7, 7, 7, 8])])
    first.keep(plan, [3, 1], pa.array([30.0, 10.0]))
    first.settle()
    first.close()
    again = open_task(config, _core.ResultTask, "kept")
    plan = again.offer([pa.array([7, 7, 7, 8])])
    assert plan.live.to_pylist() == [0, 2]
    assert again.complete(plan, pa.array([0.0, 20.0])).to_pylist() == [0.0, 10.0, 20.0, 30.0]
    again.publish()
    assert again.finish()["replayed"] == 2


def test_a_failed_service_is_asked_again_unless_something_depends_on_it(config: Any) -> None:
    first = open_task(config, _core.ServiceTask, "failing")
    assert first.call_begin("down") is None
    first.call_record("down", False, b"error")
    first.time_ns()
    assert first.call_begin("down") is None
    first.call_record("down", False, b"error")
    first.publish_answers()
    first.close()
    again = open_task(config, _core.ServiceTask, "failing")
    assert again.call_begin("down") == (False, b"error")
    again.time_ns()
    assert again.call_begin("down") is None
    again.close()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("s3:/x", "write two"),
        (Path("s3://x"), "give it as text"),
    ],
)
def test_a_checkpoint_folder_that_nobody_can_mean_is_refused(path: str | Path, why: str) -> None:
    with pytest.raises(ConfigError, match=f"checkpoint_dir.*{why}"):
        _config.parse_checkpoint_dir(path)


def test_what_nothing_tells_apart_is_refused_by_each_attempt_of_its_stage(config: Any) -> None:
    """Spark tries it again, and the order in which rows come may be the recorded one by chance."""
    first = open_task(config, _core.ResultTask, "refused")
    plan = first.offer([pa.array(["a", "b", "a"])])
    first.complete(plan, pa.array([1, 2, 3]))
    first.publish()
    first.finish()
    second = open_task(config, _core.ResultTask, "refused", stage=1)
    with pytest.raises(ReplayDivergence, match="equal rows with different values") as refused:
        second.offer([pa.array(["b", "a", "a"])])
    second.close()
    with pytest.raises(ReplayDivergence) as again:
        open_task(config, _core.ResultTask, "refused", stage=1)
    assert str(again.value) == str(refused.value)
    other_stage = open_task(config, _core.ResultTask, "refused", stage=2)
    plan = other_stage.offer([pa.array(["a", "b", "a"])])
    assert other_stage.complete(plan, None).to_pylist() == [1, 2, 3]
    other_stage.finish()
