"""What Spark's limit of Python workers' memory leaves the agents that they start."""

from __future__ import annotations

from typing import Any

from clonos import _core
from clonos._config import parse_size
from clonos.errors import ConfigError

# By which Spark limits the address space of Python workers: of all of an executor together.
WORKER_MEMORY = "spark.executor.pyspark.memory"


def check_worker_memory(settings: Any, memory: int) -> str | None:
    """Look at what PySpark leaves the agents of executors, which its workers start.

    A worker's address space is limited by ``spark.executor.pyspark.memory``, for good, and that
    of what it starts.

    Parameters
    ----------
    settings : pyspark.SparkConf
    memory : int
        Bytes that an agent is to have for logs.

    Returns
    -------
    str or None
        What to warn of.

    Raises
    ------
    ConfigError
        If no agent can run.
    """
    said = settings.get(WORKER_MEMORY)
    if not said:
        return None
    text = said.strip().lower()
    each = parse_size(WORKER_MEMORY, f"{text}m" if text.isdecimal() else text)
    each //= max(int(settings.get("spark.executor.cores", "1")), 1)
    left = _core.memory_within(each, memory)
    advice = (
        f"{WORKER_MEMORY}={said} leaves each Python worker, and the agent that one of them starts, "
        f"{each >> 20} MiB of address space"
    )
    if left == 0:
        message = f"{advice}, in which none can run: raise it, or leave it out"
        raise ConfigError(message, "CONFIG")
    if left < memory:
        return (
            f"{advice}: it keeps {left >> 20} MiB of logs in memory, and not the "
            f"{memory >> 20} MiB of memory="
        )
    return None
