"""Letting the host process into the driver's JVM: `Gateway.java`, sent to Spark as a jar.

`Gateway.class` is that file, compiled: neither a client nor the driver need have a compiler.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASS = Path(__file__).with_name("Gateway.class")
_NAME = "io.clonos.Gateway"


def open_gateway(spark: SparkSession, folder: str) -> str:
    """Have the driver's JVM write how to reach it into a folder; what it answers.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A session of Spark Connect. The function is not left in it: another one is made.
    folder : str
        On the driver's host.
    """
    other = spark.newSession()
    # Of this session alone, which is ours: files of pipelines may not register functions.
    client: Any = other
    try:
        with tempfile.TemporaryDirectory() as made:
            jar = Path(made) / "clonos-gateway.jar"
            with zipfile.ZipFile(jar, "w") as archive:
                archive.write(_CLASS, f"{_NAME.replace('.', '/')}.class")
            other.addArtifact(str(jar))
        client.client.register_java("clonos_gateway", _NAME, "string")
        # Over rows of its own, which Spark has in the driver: a task would run elsewhere.
        rows = other.sql(
            "select clonos_gateway(folder) answer from values (:folder) as _(folder)",
            args={"folder": folder},
        )
        return str(rows.collect()[0].answer)
    finally:
        # Not `stop`, which would end a server that this process has started.
        client.client.release_session()
