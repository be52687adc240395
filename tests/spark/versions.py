"""Not everything that the tests try is in each version of Spark that they run on."""

from __future__ import annotations

import pytest

from clonos._versions import spark_version

SPARK = spark_version()
since_42 = pytest.mark.skipif(SPARK < (4, 2), reason="Spark 4.2 brought what this tries")
