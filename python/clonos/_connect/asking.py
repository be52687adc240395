"""A client's requests to the host process.

Spark has the schema of a Python data source asked for where it plans: by a Python process on the
driver's host. So a request is a source of which nothing is read, and the answer stands in the
metadata of its one field. No job runs for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORMAT = "clonos-host"
_OPTION = "request"
_ANSWER = "answer"


class HostSource(DataSource):
    """What a request is to Spark."""

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return _FORMAT

    def schema(self) -> StructType:
        """Answer the request, on the driver's host."""
        from clonos._connect.answering import answer

        answered = json.dumps(answer(json.loads(self.options[_OPTION])))
        return StructType().add(_ANSWER, "string", nullable=True, metadata={_ANSWER: answered})


def ask(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    """Return what the driver's host answers; both are JSON.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A session of Spark Connect in which `HostSource` is registered.
    """
    read = spark.read.format(_FORMAT).option(_OPTION, json.dumps(request)).load()
    answered: dict[str, Any] = json.loads(read.schema[0].metadata[_ANSWER])
    return answered
