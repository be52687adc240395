"""Which Spark runs: for what differs between versions, and whether it is one that we know."""

from __future__ import annotations

import functools
import logging
import os

from clonos.errors import ConfigError

# Minor versions of Spark that the tests were run with: from, to.
KNOWN_SPARK = ((4, 1), (4, 3))
# Lets newer ones be tried.
ANY_SPARK = "CLONOS_ANY_SPARK"
_log = logging.getLogger("clonos")


@functools.cache
def spark_version() -> tuple[int, int]:
    """Major and minor version of PySpark, such as ``(4, 3)``."""
    import pyspark

    return minor_version(pyspark.__version__)


def minor_version(version: str) -> tuple[int, int]:
    """Major and minor version of one such as ``"4.3.0"``."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check_spark(version: str) -> None:
    """Refuse a Spark whose private names nobody has looked at: they would be missed in a task.

    Raises
    ------
    ConfigError
        It names the versions to install, and what lets a newer one be tried.
    """
    found, (first, last) = minor_version(version), KNOWN_SPARK
    if first <= found <= last:
        return
    known = f"this version of Clonos knows Spark {first[0]}.{first[1]} to {last[0]}.{last[1]}"
    if found > last and os.environ.get(ANY_SPARK) == "1":
        _log.warning("Spark %s is tried as %s=1 asks for: %s", version, ANY_SPARK, known)
        return
    message = f"{known}, and this is {version}: install pyspark>={first[0]}.{first[1]}"
    message += f",<{last[0]}.{last[1] + 1}"
    if found > last:
        message += f" or a newer clonos, or set {ANY_SPARK}=1 to try it"
    raise ConfigError(message, "CONFIG")
