"""Sessions that come and go: of Spark, of Clonos, and epochs that nobody has named."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime as dt
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.sql.functions import lit, udf

import clonos
from clonos import _core, causal, errors, testing

PATIENCE_SECONDS = 90.0


def asked(folder: Path) -> int:
    return sum(len(file.read_text()) for file in folder.iterdir())


def noting(folder: Path) -> Any:
    """Make a function that leaves a mark for each call."""
    path = str(folder)

    def note(n: int) -> int:
        with Path(path, str(os.getpid())).open("a") as file:
            file.write(".")
        return 10 * n

    return note


@pytest.mark.parametrize("per", ["row", "value"])
@pytest.mark.parametrize("action", ["foreachPartition", "foreach", "collect", "take"])
def test_what_a_job_over_rdds_has_asked_is_asked_again_in_the_next(
    session: Any, spark: Any, tmp_path: Path, per: str, action: str
) -> None:
    note = causal("long", per=per)(noting(tmp_path))

    def run() -> None:
        rows = spark.range(0, 4, 1, 2).select(note("id").alias("n"))
        if action == "collect":
            assert [row.n for row in rows.rdd.collect()] == [0, 10, 20, 30]
        elif action == "take":
            assert len(rows.rdd.take(4)) == 4
        else:
            getattr(rows, action)(list if action == "foreachPartition" else str)

    for times in (1, 2, 3):
        run()
        assert asked(tmp_path) == 4 * times
    deadline = time.monotonic() + PATIENCE_SECONDS
    # Their logs go with the jobs.
    while session.stats().tasks and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not session.stats().tasks


@pytest.mark.parametrize("epoch", ["one for both", "each its own"])
@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_job_that_came_to_nothing_is_run_again_over_its_rdd(
    session: Any, spark: Any, tmp_path: Path, end: str, epoch: str
) -> None:
    """Its shuffle was not complete, so nobody has read what the second job writes again."""
    is_down = tmp_path / "is_down"
    is_down.touch()
    calls = tmp_path / "calls"
    calls.mkdir()
    note, flag, fails = noting(calls), str(is_down), end == "failed"

    @causal("long")
    def ask(n: int) -> int:
        while n % 10 == 9 and Path(flag).exists():
            if fails:
                raise OSError("the service is down")
            time.sleep(0.05)
        return int(note(n))

    shuffled = spark.range(0, 40, 1, 4).select(ask("id")).rdd.map(lambda row: (row[0], 1))
    shuffled = shuffled.partitionBy(3)

    def cancel() -> None:
        testing.wait_until(lambda: asked(calls) > 5, "the first calls")
        spark.sparkContext.cancelAllJobs()

    with session.epoch(end) if epoch == "one for both" else contextlib.nullcontext():
        canceller = threading.Thread(target=cancel)
        if end == "cancelled":
            canceller.start()
        with pytest.raises(Exception, match="service is down" if fails else "cancelled"):
            shuffled.count()
        is_down.unlink()
        for _ in range(2):
            assert sorted(n for n, _ in shuffled.collect()) == list(range(0, 400, 10))
    if end == "cancelled":
        canceller.join()


def test_stats_count_the_calls_of_functions_with_one_answer_per_value(
    session: Any, spark: Any
) -> None:
    f = causal(uid="counted")(udf(lambda n: n, "long"))
    spark.range(0, 100, 1, 1).select(f(lit(7))).collect()
    spark.range(0, 100, 1, 1).select(f("id")).collect()
    (counted,) = (known for known in session.stats().operators if known.operator == "counted")
    assert (counted.calls, counted.saved) == (101, 99)


@pytest.mark.parametrize("name", [20261122, dt.date(2026, 11, 22), None, "", "x" * 201])
def test_the_name_of_an_epoch_is_a_text(session: Any, name: Any) -> None:
    with pytest.raises(errors.ConfigError, match="1 to 200"), session.epoch(name):
        pass


def test_another_session_of_the_application_is_attached_too(plain_spark: Any, session: Any) -> None:
    other = plain_spark.newSession()
    # The same settings are the same session.
    assert clonos.attach(other) is session
    with pytest.raises(Exception, match="port"):
        other.readStream.format("clonos-socket").load()
    f = causal("double")(lambda _n: clonos.random.random())
    with session.epoch("other"):
        rows = other.range(0, 10, 1, 2).select(f("id"))
        assert rows.collect() == rows.collect()
        # Rows with equal arguments are told apart there, too.
        moved: Any = other.range(0, 40, 1, 4).repartition(3).select("id", f(lit(1)))
        assert "xxhash64" in moved._jdf.queryExecution().optimizedPlan().toString()
    with clonos.attach(other, memory="64MiB") as attached:
        assert not session.is_active
        assert attached.is_active
        with pytest.raises(errors.ConfigError, match="stopped"), session.epoch("old"):
            pass
    assert not attached.is_active


def test_threads_that_attach_have_one_session(plain_spark: Any) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        attached = list(threads.map(lambda _: clonos.attach(plain_spark), range(4)))
    assert all(session is attached[0] and session.is_active for session in attached)
    attached[0].stop()


def test_a_setting_that_is_refused_stops_nothing(
    session: Any, plain_spark: Any, tmp_path: Path
) -> None:
    with pytest.raises(errors.ConfigError, match="oops"):
        clonos.attach(plain_spark, memory="oops")
    (tmp_path / "file").touch()
    # The last is there, and nobody can write to it.
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/sys/kernel")):
        with pytest.raises(errors.ClonosError):
            clonos.attach(plain_spark, checkpoint_dir=folder)
    assert session.is_active
    with session.epoch("goes on"):
        pass


SPARK_RESTARTED = """
import warnings
from pyspark.sql import SparkSession
import clonos

def start():
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    return builder.config("spark.log.level", "OFF").getOrCreate()

f = clonos.causal("double")(lambda n: clonos.random.random())
spark = start()
old = clonos.attach(spark)
spark.stop()
spark = start()
assert "was stopped" in repr(old), old
with warnings.catch_warnings(record=True) as given:
    warnings.simplefilter("always")
    spark.range(3).select(f("id"))
assert any(issubclass(w.category, clonos.errors.NotRecordedWarning) for w in given), given
try:
    with old.epoch("a"):
        raise AssertionError("entered")
except clonos.errors.ConfigError:
    pass
new = clonos.attach(spark)
assert new is not old and new.is_active
with new.epoch("b"):
    rows = spark.range(3).select(f("id"))
    assert rows.collect() == rows.collect()
spark.stop()
print("held")
"""


def test_an_epoch_that_is_open_is_not_taken_over_by_another_session(
    session: Any, plain_spark: Any
) -> None:
    with session.epoch("open"):
        # The same settings are the same session.
        assert clonos.attach(plain_spark) is session
        with pytest.raises(errors.ConfigError, match="open is open"):
            clonos.attach(plain_spark, memory="64MiB")
        assert session.is_active
    with clonos.attach(plain_spark, memory="64MiB") as other:
        assert not session.is_active
        assert other.is_active


def test_an_iterator_that_is_read_on_behind_its_epoch_is_refused(
    session: Any, plain_spark: Any
) -> None:
    answers = causal("long", per="row")(lambda _: clonos.random.getrandbits(40))
    rows = plain_spark.range(0, 40, 1, 4).select(answers("id").alias("answer"))
    with session.epoch("left behind"):
        left = rows.toLocalIterator()
        first = next(left)
    with pytest.raises(Exception, match="read an iterator to its end or close it"):
        list(left)
    with session.epoch("left behind"):
        assert first not in rows.collect()


@pytest.mark.parametrize("per", ["row", "value"])
def test_a_thread_that_outlives_its_epoch_answers_nothing_in_the_next(
    session: Any, plain_spark: Any, tmp_path: Path, per: Any
) -> None:
    folder = str(tmp_path)

    def ask(_: int) -> int:
        number = len(os.listdir(folder))  # noqa: PTH208
        Path(folder, f"asked {number}").touch()
        while not os.path.exists(f"{folder}/answer {number}"):  # noqa: PTH110
            time.sleep(0.02)
        return number

    answers = causal("int", per=per)(ask)
    rows = plain_spark.range(0, 1, 1, 1).select(answers("id").alias("answer"))
    found: list[Any] = []

    def job() -> None:
        with contextlib.suppress(Exception):
            found.append(rows.collect()[0].answer)

    def started(number: int) -> InheritableThread:
        thread = InheritableThread(target=job)
        thread.start()
        asked = tmp_path / f"asked {number}"
        testing.wait_until(asked.exists, "a call", PATIENCE_SECONDS)
        return thread

    with session.epoch(f"outlived {per}"):
        left = started(0)
    with session.epoch(f"outlived {per}"):
        now = started(1)
        # What is left answers first, while the next run asks.
        (tmp_path / "answer 0").touch()
        left.join()
        (tmp_path / "answer 1").touch()
        now.join()
    assert found == [1]


def test_what_is_committed_within_its_block_goes_on(session: Any, plain_spark: Any) -> None:
    answers = causal("long", per="row")(lambda _: clonos.random.getrandbits(40))
    rows = plain_spark.range(0, 8, 1, 2).select(answers("id").alias("answer"))
    with session.epoch("given up"):
        first = rows.collect()
        session.commit("batch", "given up")
        assert set(rows.collect()).isdisjoint(first)


STOPPED_WITHIN = """
import sys
from pyspark.sql import SparkSession
import clonos

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "OFF").getOrCreate()
session = clonos.attach(spark, checkpoint_dir=sys.argv[1])
f = clonos.causal("double", uid="f")(lambda n: clonos.random.random())
try:
    with session.epoch("raises"):
        try:
            spark.range(3).select(f("id")).collect()
            raise KeyError("the user's")
        finally:
            if len(sys.argv) > 2:
                spark.stop()
except KeyError:
    pass
if len(sys.argv) > 2:
    sys.exit()
with session.epoch("ends"):
    spark.range(3).select(f("id")).collect()
    spark.stop()
"""


@pytest.mark.parametrize("more", [[], ["now"]], ids=["ends", "raises"])
def test_spark_may_be_stopped_at_the_end_of_an_epoch(tmp_path: Path, more: list[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(STOPPED_WITHIN)
    folder = tmp_path / "logs"
    subprocess.run([sys.executable, program, folder, *more], timeout=120, check=True)
    left = json.loads(_core.Epochs.open(_core.Location(folder)).list())
    # That which ended is committed, that which raised is not.
    assert [epoch["name"] for epoch in left] == ["batch/raises"]


def test_who_restarts_spark_is_told_to_attach_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPARK_RESTARTED)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip().endswith("held"), done.stderr[-3000:]


def test_spark_is_asked_on_connections_that_stay(
    session: Any, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # py4j makes one for each thread of Python, and takes as long for it as for twenty requests.
    from py4j.clientserver import JavaClient

    made: list[Any] = []
    makes = JavaClient._create_new_connection
    ten = causal("long")(lambda n: 10 * n)

    def counted(client: Any) -> Any:
        made.append(threading.current_thread().name)
        return makes(client)

    def run() -> None:
        rows = spark.range(0, 4, 1, 2).select(ten("id").alias("n")).collect()
        assert sorted(row.n for row in rows) == [0, 10, 20, 30]

    for _ in range(3):
        run()
    monkeypatch.setattr(JavaClient, "_create_new_connection", counted)
    for _ in range(10):
        run()
    # As many as were at work at once, which may not have been as many before.
    assert len(made) <= 4, made
    assert session.is_active
