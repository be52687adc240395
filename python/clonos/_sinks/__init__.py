"""Sinks that write each epoch once, as Spark data sources.

A task stages what it has; the commit of an epoch publishes it in one transaction of the target,
together with the fence (query, epoch, driver) that the target keeps. So an epoch that is run again
after a crash finds that it has been written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

__all__ = ["data_sources"]


def data_sources() -> list[type[DataSource]]:
    """Return the sinks, to be registered with ``spark.dataSource.register``.

    A sink whose client library is not installed is among them: it says so when it is used.
    """
    from clonos._sinks.delta import DeltaSink
    from clonos._sinks.files import FilesSink
    from clonos._sinks.kafka import KafkaSink
    from clonos._sinks.postgresql import PostgresqlSink
    from clonos._sinks.sqlite import SqliteSink

    return [FilesSink, SqliteSink, PostgresqlSink, KafkaSink, DeltaSink]
