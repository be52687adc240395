"""Which version of Spark the tests run on: not everything that is tried is in all of them."""

from __future__ import annotations

import pyspark
import pytest

SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
since_42 = pytest.mark.skipif(SPARK < (4, 2), reason="Spark 4.2 brought what this tries")
