"""What `clonos doctor` says of a cluster, and of hosts on which something is wrong."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from typer.testing import CliRunner

from clonos.cli import cluster, probe
from clonos.cli.commands import app

HERE: dict[str, Any] = {**next(probe.facts(None, "", {}, ())), "apart": 0.4}


def doctor(master: str, conf: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as Spark keeps its settings for good."""
    command = [sys.executable, "-c", "from clonos.cli import main; main()", "doctor"]
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"{conf} pyspark-shell",
        "COLUMNS": "300",
    }
    return subprocess.run(
        [*command, "--master", master, *more],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_the_driver_is_as_itself() -> None:
    assert HERE["clonos"].startswith("0."), HERE
    assert not list(cluster._trouble(HERE, HERE))


@pytest.mark.parametrize(
    ("differs", "words"),
    [
        ({"clonos": "cannot be imported: No module"}, ["Clonos cannot be", "all nodes"]),
        ({"files": 1024}, ["at most 1024 open files", "ulimit -Hn"]),
        ({"folder": "cannot write there"}, ["checkpoint_dir: cannot write", "mount the same"]),
        ({"apart": 90.0}, ["clock more than 1 s off", "time server"]),
    ],
)
def test_what_is_wrong_on_a_host_is_told(differs: dict[str, Any], words: list[str]) -> None:
    (finding,) = cluster._trouble({**HERE, **differs}, HERE)
    assert not finding.ok
    for word in words:
        assert word in f"{finding.what} {finding.advice}"


def test_of_many_hosts_some_are_named() -> None:
    assert cluster._named({"b", "a"}) == "a, b"
    assert cluster._named({f"h{n:03}" for n in range(500)}) == "h000, h001, h002 and 497 more"


def test_a_host_without_clonos_says_so() -> None:
    ask = cloudpickle.dumps(functools.partial(cluster.probe().facts, None, "marker", {}))
    program = (
        "import sys; sys.modules['clonos'] = None\n"
        "import pickle; print(next(pickle.load(sys.stdin.buffer)(())))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=ask, check=True, capture_output=True, timeout=60)
    assert "cannot be imported" in ast.literal_eval(done.stdout.decode())["clonos"]


def test_a_folder_that_is_another_one_is_told(tmp_path: Path) -> None:
    (told,) = probe.facts(str(tmp_path), "marker", {}, ())
    assert "is not seen" in told["folder"]
    (tmp_path / "marker").touch()
    (told,) = probe.facts(str(tmp_path), "marker", {}, ())
    assert told["folder"] == ""
    assert [path.name for path in tmp_path.iterdir()] == ["marker"]
    (told,) = probe.facts("/proc/none", "marker", {}, ())
    assert "is not seen" in told["folder"]


def test_what_is_printed_is_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "a[/b]"
    found = CliRunner().invoke(app, ["doctor", "--checkpoint-dir", str(folder)])
    assert "a[/b]" in found.output.replace("\n", "")
    assert found.exception is None or isinstance(found.exception, SystemExit)


def test_ports_are_for_a_cluster() -> None:
    found = CliRunner().invoke(app, ["doctor", "--agent-ports", "40000-40100"])
    assert found.exit_code == 2
    assert "--master" in found.output
    found = CliRunner().invoke(app, ["doctor", "--master", "local", "--agent-ports", "many"])
    assert found.exit_code == 2
    assert "40000-40100" in found.output


@pytest.mark.timeout(300)
def test_a_server_that_does_not_answer_is_told() -> None:
    pytest.importorskip("grpc")
    done = doctor("sc://127.0.0.1:9/;user_id=me", "")
    assert "fail Spark on sc://127.0.0.1:9/" in done.stdout, done.stdout + done.stderr
    assert "Java" not in done.stdout
    assert done.returncode == 1


@pytest.mark.spark
@pytest.mark.whole
def test_a_folder_that_cannot_be_made_is_told() -> None:
    done = doctor("local[2]", "", "--checkpoint-dir", "/proc/none")
    assert "fail checkpoint_dir: [Errno" in done.stdout, done.stdout + done.stderr
    assert " agents" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 1


@pytest.mark.spark
@pytest.mark.whole
def test_executors_that_do_not_come_are_not_waited_for_without_end() -> None:
    done = doctor("local-cluster[1,1,1024]", "--conf spark.executor.cores=2", "--wait", "3")
    assert "not all executors answered within 3 s" in done.stdout, done.stdout + done.stderr
    assert " agents" not in done.stdout
    assert done.returncode == 1


@pytest.mark.spark
@pytest.mark.whole
def test_a_spark_that_does_not_start_is_told() -> None:
    done = doctor("local", "--conf spark.network.crypto.enabled=true")
    assert "spark.authenticate must be enabled" in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stdout
    assert done.returncode == 1


@pytest.mark.spark
@pytest.mark.whole
def test_a_cluster_is_looked_at(tmp_path: Path) -> None:
    conf = "--conf spark.io.encryption.enabled=true --conf spark.ui.enabled=false"
    more = ["--checkpoint-dir", str(tmp_path), "--agent-ports", "41000-41100"]
    done = doctor("local-cluster[2,1,1024]", conf, *more)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok", "note", "fail"))]
    told = "\n".join(lines)
    failed = [line for line in lines if line.startswith("fail")]
    assert f"executors that answered: 2, on {HERE['host']}" in told, done.stdout + done.stderr
    assert "all these see it and write there" in told
    assert " agents" in told
    encrypts = "Spark encrypts (spark.io.encryption.enabled), and Clonos does too: what they spill"
    assert f"note {encrypts}" in told
    assert "executors: 3 agents" in told
    assert not failed, told
    assert not list(tmp_path.iterdir()), "nothing is left"
    assert done.returncode == 0
