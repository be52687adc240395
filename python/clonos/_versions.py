"""Which PySpark runs, for what differs from one version to the next."""

from __future__ import annotations

import functools


@functools.cache
def spark_version() -> tuple[int, int]:
    """Major and minor version of PySpark, such as ``(4, 3)``."""
    import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)
