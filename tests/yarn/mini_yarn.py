"""A YARN of one machine: a resource manager and two node managers, which start real containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyspark
import pytest

import maven

NODES = 2
SECONDS = 240
STOP_SECONDS = 5
HADOOP = "3.5.0"
# What Hadoop's archive of tests needs besides what Spark has.
JARS = {
    "org.apache.hadoop:hadoop-client-minicluster": HADOOP,
    "org.junit.jupiter:junit-jupiter-api": "5.13.3",
    "org.junit.platform:junit-platform-commons": "1.13.3",
    "org.opentest4j:opentest4j": "1.3.0",
    "org.mockito:mockito-core": "4.11.0",
    "org.assertj:assertj-core": "3.27.3",
    "org.bouncycastle:bcprov-jdk18on": "1.82",
    "org.bouncycastle:bcpkix-jdk18on": "1.82",
    "org.bouncycastle:bcutil-jdk18on": "1.82",
}
SPARK_JARS = Path(pyspark.__file__).parent / "jars"


class Yarn:
    """The cluster, in a folder of its own.

    Parameters
    ----------
    folder : Path
        Where its containers work, too.
    """

    def __init__(self, folder: Path) -> None:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
        if java is None or not shutil.which("javac", path=str(Path(java).resolve().parent)):
            pytest.skip("no YARN: this Java has no compiler")
        self._conf = folder / "conf"
        self._conf.mkdir()
        program = Path(__file__).with_name("MiniYarn.java")
        jars = maven.jars("YARN", f"yarn-{HADOOP}", JARS, alone=True)
        path = f"{jars}/*{os.pathsep}{SPARK_JARS}/*"
        command = [java, "-Xmx512m", "-cp", path, program, self._conf, str(NODES)]
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        while said and said != b"ready\n":
            said = self._process.stdout.readline()
        assert said, self._log.read_text()
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # It waits for much that nobody needs; its containers have ended by then.
            self._process.kill()
            self._process.wait()

    def submit(self, program: str, *arguments: object, **settings: str) -> str:
        """Run a program of this folder to its end; what was said."""
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        python = sys.executable
        all_settings = {
            "spark.yarn.jars": f"local:{SPARK_JARS}/*",
            "spark.yarn.stagingDir": self._conf.parent.as_uri(),
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": python,
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.PYSPARK_PYTHON": python,
            "spark.executor.instances": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.yarn.am.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.yarn.submit.waitAppCompletion": "true",
            "spark.yarn.maxAppAttempts": "2",
            "spark.yarn.report.interval": "200ms",
            **settings,
        }
        command = [str(submit), "--master", "yarn"]
        for name, value in all_settings.items():
            command += ["--conf", f"{name}={value}"]
        command += [str(Path(__file__).with_name(program)), *map(str, arguments)]
        environment = os.environ | {
            "HADOOP_CONF_DIR": str(self._conf),
            "PYSPARK_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout
