"""Programs of clients, each in a process of its own: ``programs.py NAME URL FOLDER``.

What they print last is what they have found, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import InheritableThread, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.functions import pandas_udf, udtf

import clonos
from clonos import causal

cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROWS = 400


class Failed(Exception):
    """Ends an epoch that is to be run again."""


def note(file: str, row: int) -> float:
    """Answer of a service that never gives the same twice, and keeps a list of its calls."""
    with Path(file).open("a") as calls:
        calls.write(f"{row}\n")
    return random.random()


def calls(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def noting(folder: Path, **options: Any) -> Any:
    file = str(folder / "calls.txt")

    def ask(row: int) -> float:
        time.sleep(0.005)
        return note(file, row)

    return causal("double", uid="ask", **options)(ask)


def rows(frame: Any) -> list[list[Any]]:
    return sorted(list(row) for row in frame.collect())


def numbers(spark: SparkSession, partitions: int = 4) -> Any:
    return spark.range(0, ROWS, 1, partitions)


def epochs(spark: SparkSession, folder: Path) -> Any:
    """An epoch that fails and is run again, with a function of rows, of pandas and of groups."""
    session = clonos.attach(spark, checkpoint_dir=folder / "checkpoint")
    assert clonos.attach(spark, checkpoint_dir=folder / "checkpoint") is session
    drawn = causal("double", uid="drawn")(lambda _row: random.random())

    @causal(uid="of series")
    @pandas_udf("double")
    def of_series(series: pd.Series) -> pd.Series:
        return series.map(lambda _: random.random())

    def of_group(group: pd.DataFrame) -> pd.DataFrame:
        return group.assign(x=random.random())

    def run() -> Any:
        frame = numbers(spark)
        plain = rows(frame.select("id", drawn("id").alias("a"), of_series("id").alias("b")))
        grouped = frame.groupBy((sf.col("id") % 3).alias("k"))
        by_group = grouped.applyInPandas(causal(of_group, uid="of group"), "id long, x double")
        return plain, rows(by_group)

    with contextlib.suppress(Failed), session.epoch("a, day ü"):
        first = run()
        raise Failed
    with session.epoch("a, day ü"):
        with session.epoch("a, day ü"):
            second = run()
    with session.epoch("a, day ü"):
        third = run()
    assert first == second
    assert second != third
    assert session.open_epochs() == []
    with session.epoch("one"):
        with pytest.raises(clonos.errors.ConfigError, match="inside of another"):
            with session.epoch("two"):
                pass
    stats = session.stats()
    return {"replayed": stats.totals.replayed, "agents": len(stats.agents)}


def dies(spark: SparkSession, folder: Path) -> Any:
    """The client goes in the middle of an epoch."""
    session = clonos.attach(spark, checkpoint_dir=folder / "checkpoint")

    def watch() -> None:
        while calls(folder / "calls.txt") < ROWS // 4:
            time.sleep(0.01)
        os._exit(9)

    threading.Thread(target=watch, daemon=True).start()
    with session.epoch("night"):
        numbers(spark).select("id", noting(folder, flush="call")("id")).collect()
    return "it should have died"


def resumes(spark: SparkSession, folder: Path) -> Any:
    """Another client goes on with that epoch."""
    session = clonos.attach(spark, checkpoint_dir=folder / "checkpoint")
    with session.epoch("night"):
        found = rows(numbers(spark).select("id", noting(folder, flush="call")("id")))
    assert [row[0] for row in found] == list(range(ROWS))
    return {"calls": calls(folder / "calls.txt"), "replayed": session.stats().totals.replayed}


def loses_executors(spark: SparkSession, folder: Path) -> Any:
    """Executors are lost while an exchange is read, of what services have said."""
    session = clonos.attach(spark)
    killed = folder / "killed"

    def score(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            drawn = [clonos.random.random() for _ in range(batch.num_rows)]
            yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(drawn)], names=["id", "x"])

    def dying(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        from clonos._worker.agents import executor_jvm

        context = TaskContext.get()
        if context is not None and context.partitionId() == 0 and not killed.exists():
            killed.touch()
            os.kill(executor_jvm(), 9)
        yield from batches

    frame = numbers(spark, 2)
    scored = clonos.map_in_arrow(frame, score, "id long, x double", uid="score")
    behind = clonos.exchange(scored, 2, "id")
    # Rows of Spark's own, too.
    of_spark = clonos.exchange(numbers(spark, 2), 3, "id")
    assert rows(of_spark) == [[at] for at in range(ROWS)]
    found = rows(clonos.map_in_arrow(behind, dying, "id long, x double", uid="dying"))
    assert killed.exists()
    assert [row[0] for row in found] == list(range(ROWS))
    totals = session.stats().totals
    return {"replayed": totals.replayed + totals.ran_replayed + totals.resent}


def streams(spark: SparkSession, folder: Path) -> Any:
    """A stream whose batch fails and is run again by another run of its query."""
    clonos.attach(spark, checkpoint_dir=folder / "checkpoint")
    file, mended = str(folder / "calls.txt"), folder / "mended"

    def ask(row: int) -> float:
        if row == 150 and not mended.exists():
            message = "on purpose"
            raise ValueError(message)
        return note(file, row)

    asked = causal("double", uid="ask", flush="call")(ask)

    def start() -> Any:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100)
        frame = source.option("numPartitions", 2).load().select("value", asked("value").alias("x"))
        writer = frame.writeStream.format("clonos-files").option("path", str(folder / "out"))
        return writer.option("checkpointLocation", str(folder / "spark")).start()

    query = start()
    with pytest.raises(Exception, match="on purpose"):
        query.awaitTermination(180)
    assert not query.isActive
    mended.touch()
    query = start()
    while (query.lastProgress or {}).get("batchId", 0) < 4:
        assert query.exception() is None
        time.sleep(0.2)
    query.stop()
    found = spark.read.parquet(str(folder / "out")).select("value").collect()
    values = [row.value for row in found]
    assert len(values) == len(set(values))
    asked_for = (folder / "calls.txt").read_text().splitlines()
    return {"twice": len(asked_for) - len(set(asked_for)), "rows": len(values)}


def table_functions(spark: SparkSession, folder: Path) -> Any:
    """Table functions over constants, beside rows, over a table, and by name in SQL."""

    @udtf(returnType="n: long, x: double")
    class Drawn:
        def eval(self, times: int) -> Iterator[Any]:
            for at in range(times):
                yield at, random.random()

    @udtf(returnType="n: long, x: double")
    class Counted:
        def __init__(self) -> None:
            self._n = 0

        def eval(self, row: Any) -> None:
            self._n += row.id

        def terminate(self) -> Iterator[Any]:
            yield self._n, random.random()

    session = clonos.attach(spark, checkpoint_dir=folder / "checkpoint")
    drawn, counted = causal(uid="drawn")(Drawn), causal(uid="counted")(Counted)
    spark.udtf.register("drawn", drawn)
    numbers(spark).createOrReplaceTempView("numbers")

    def run() -> Any:
        query = "select id, n, x from numbers, lateral drawn(id % 3)"
        over = counted(spark.table("numbers").asTable().partitionBy(sf.col("id") % 2))
        beside = spark.range(9).lateralJoin(drawn(sf.col("id").outer()))
        return [rows(frame) for frame in (drawn(sf.lit(4)), spark.sql(query), over, beside)]

    with contextlib.suppress(Failed), session.epoch("tables"):
        first = run()
        raise Failed
    with session.epoch("tables"):
        assert run() == first
    with session.epoch("tables"):
        assert run() != first
    return {"rows": [len(found) for found in first], "replayed": session.stats().totals.replayed}


def batch_functions(spark: SparkSession, folder: Path) -> Any:
    """Two streams at a time, whose batch functions ask, fail once and are run again."""
    session = clonos.attach(spark, checkpoint_dir=folder / "checkpoint")
    file, mended = str(folder / "calls.txt"), folder / "mended"
    in_query = causal("double", uid="in query")(lambda row: note(file, 1_000_000 + row))
    in_batch = causal("double", uid="in batch", flush="call")(lambda row: note(file, row))
    shared = causal("double", uid="shared", per="value")(lambda row: random.random() + row)
    in_other = causal("double", uid="in another session")(lambda _row: random.random())

    def write_of(first: int) -> Any:
        def write(batch: Any, number: int) -> None:
            drawn = clonos.random.random()
            asked = clonos.call(note, file, -1 - number - first)
            twice = batch.withColumn("a", in_batch(sf.col("value") + first))
            twice = twice.withColumn("b", in_batch(sf.col("value") + first + 10_000))
            twice = twice.withColumn("c", shared("value"))
            other = batch.sparkSession.newSession()
            with ThreadPoolExecutor(1) as pool:
                (in_thread,) = pool.map(rows, [twice])
            elsewhere = other.range(3).select(in_other("id").alias("x")).collect()
            seen_there = str(sorted(row.x for row in elsewhere))
            (folder / f"other-{first}-{number}-{mended.exists()}").write_text(seen_there)
            if in_thread != rows(twice):
                (folder / f"other-{first}-1-False").write_text("a thread has others")
            found = twice.withColumn("drawn", sf.lit(drawn)).withColumn("asked", sf.lit(asked))
            if number == 1 and not mended.exists():
                before = str(sorted(map(tuple, found.collect())))
                (folder / f"before-{first}").write_text(before)
                message = "on purpose"
                raise ValueError(message)
            found.write.mode("append").parquet(str(folder / f"out-{first}"))
            if number == 1:
                again = spark_of(batch).read.parquet(str(folder / f"out-{first}"))
                # Parquet has nothing of the batch before it in these.
                drawn_in = again.where(sf.col("drawn") == drawn)
                (folder / f"after-{first}").write_text(str(sorted(map(tuple, drawn_in.collect()))))

        return write

    def start(first: int) -> Any:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50)
        frame = source.option("numPartitions", 2).load().select("value")
        frame = frame.withColumn("q", in_query(sf.col("value") + first))
        writer = frame.writeStream.foreachBatch(session.foreach_batch(write_of(first)))
        return writer.option("checkpointLocation", str(folder / f"spark-{first}")).start()

    firsts = (0, 100_000)
    for query in [start(first) for first in firsts]:
        with pytest.raises(Exception, match="on purpose"):
            query.awaitTermination(180)
    mended.touch()
    queries = [start(first) for first in firsts]
    for query in queries:
        while (query.lastProgress or {}).get("batchId", 0) < 3:
            assert query.exception() is None
            time.sleep(0.2)
        query.stop()
    asked = (folder / "calls.txt").read_text().splitlines()
    return {
        "same": [
            (folder / f"before-{first}").read_text() == (folder / f"after-{first}").read_text()
            and (folder / f"other-{first}-1-False").read_text()
            == (folder / f"other-{first}-1-True").read_text()
            for first in firsts
        ],
        "twice": len(asked) - len(set(asked)),
        "calls": len(asked),
        "open": session.stats().totals.opens,
    }


def sinks_of_batches(spark: SparkSession, folder: Path) -> Any:
    """Two streams, one after the other, write batches of equal numbers to one table."""
    session, table = clonos.attach(spark), folder / "results.db"
    with contextlib.closing(sqlite3.connect(table)) as database:
        database.execute("create table results (id integer)")
        for first in (0, 20):
            spark.range(first, first + 20, 1, 1).write.mode("append").parquet(str(folder / "in"))

        def write_of(begin: int) -> Any:
            def write(batch: Any, number: int) -> None:
                out = batch.select((sf.col("id") + begin).alias("id")).write.format("clonos-sqlite")
                out = out.option("path", str(table)).option("table", "results")
                out.option("epoch", number).mode("append").save()
                if number == 0:
                    write_twice(batch, folder / f"loop-{begin}")
                if number == 1 and not (folder / f"failed-{begin}").exists():
                    (folder / f"failed-{begin}").touch()
                    message = "on purpose"
                    raise ValueError(message)

            return write

        for begin in (0, 100):
            for fails in (True, False):
                source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
                writer = source.parquet(str(folder / "in")).writeStream
                writer = writer.foreachBatch(session.foreach_batch(write_of(begin)))
                writer = writer.option("checkpointLocation", str(folder / f"spark-{begin}"))
                query = writer.trigger(availableNow=True).start()
                with (
                    pytest.raises(Exception, match="on purpose")
                    if fails
                    else contextlib.nullcontext()
                ):
                    query.awaitTermination(180)
        return sorted(row for (row,) in database.execute("select id from results"))


def write_twice(batch: Any, loop: Path) -> None:
    """Each of the two is a query of its own, of the same batch."""
    batch.write.format("clonos-loop").mode("append").save(str(loop))
    try:
        batch.write.format("clonos-loop").mode("append").save(str(loop))
    except Exception as error:
        if "An epoch writes to a loop once" in str(error):
            return
        raise
    message = "rows that were written to a loop are not there"
    raise AssertionError(message)


def spark_of(batch: Any) -> Any:
    return batch.sparkSession


def refusals(spark: SparkSession, folder: Path) -> Any:
    """What is not there says so, and nothing is left unrecorded in silence."""
    clonos.attach(spark)
    drawn = causal("double", uid="drawn")(lambda _row: random.random())
    refused = []
    for attempt in (
        lambda: spark.udf.register("drawn", drawn),
        lambda: clonos.attach(spark, adopt="udf"),
        lambda: clonos.attach(spark, memory="3 apples"),
        lambda: clonos.attach(spark, driver_host="host.invalid"),
    ):
        try:
            attempt()
        except clonos.errors.ClonosError as error:
            refused.append(error.condition)

    def in_function(batch: Any, number: int) -> None:
        batch.select(drawn("value")).collect()

    def plain(batch: Any, number: int) -> None:
        batch.collect()

    clonos.attach(spark)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    said = []
    for number, (frame, write) in enumerate(
        [(source, in_function), (source.select(drawn("value")), plain)]
    ):
        writer = frame.writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(folder / f"spark{number}")).start()
        try:
            query.awaitTermination(180)
        except Exception as error:
            said.append(str(error))
    return {"refused": refused, "said": said}


def threads_and_names(spark: SparkSession, folder: Path) -> Any:
    """Threads that made no session, and functions that stand in SQL by name."""
    drawn = causal("double", uid="drawn")(lambda _row: random.random())
    shared = causal("double", uid="shared", per="value")(lambda _row: random.random())
    with pytest.raises(clonos.errors.ConfigError, match="after clonos"):
        spark.udf.register("shared", shared)
    session = clonos.attach(spark, checkpoint_dir=folder / "checkpoint")
    # As `spark.udf.register` does.
    shared.register(spark, "shared")
    spark.udf.register("plus", causal(sf.udf(lambda x, y=1: x + y + random.random(), "double")))

    def run() -> Any:
        found = []
        thread = InheritableThread(
            lambda: found.append(rows(numbers(spark).select("id", drawn("id")))), session=spark
        )
        thread.start()
        thread.join()
        other = spark.newSession()
        found.append(rows(numbers(other).select("id", drawn("id"))))
        spark.clearTags()
        found.append(rows(numbers(spark).select("id", drawn(sf.col("id") + 1))))
        query = "select id, shared(id) a, shared(id + 1) b, plus(id, 2) c, plus(id) d from range(9)"
        return [*found, rows(spark.sql(query))]

    with contextlib.suppress(Failed), session.epoch("named"):
        first = run()
        with pytest.raises(clonos.errors.ConfigError, match="named is open"):
            clonos.attach(spark, sharing_depth=2)
        raise Failed
    with session.epoch("named"):
        assert run() == first
    (*named, _) = first[-1]
    assert all(row[2] == named[at + 1][1] for at, row in enumerate(named[:-1]))
    with pytest.raises(Exception, match="called with nothing"):
        spark.sql("select shared() from range(1)").collect()
    assert clonos.time() > 0
    replayed = session.stats().totals.replayed
    # A name is of the session that is attached, not of that in which it was registered.
    other = clonos.attach(spark, memory="64MiB")
    with other.epoch("by name"):
        assert spark.sql("select shared(id) from range(9)").count() == 9
        spark.sql("select shared(id) from range(9)").collect()
    assert other.stats().totals.live == 9
    return {"replayed": replayed}


def loses_the_process(spark: SparkSession, folder: Path) -> Any:
    """The process beside the driver is killed, and another attach starts one."""
    settings = {"checkpoint_dir": folder / "checkpoint", "memory": "65MiB"}
    session = clonos.attach(spark, **settings)
    pid = int(session._host.process.split()[0])
    drawn = causal("double", uid="drawn")(lambda _row: random.random())
    with contextlib.suppress(Failed), session.epoch("lost"):
        first = rows(numbers(spark).select("id", drawn("id")))
        raise Failed
    os.kill(pid, 9)
    with pytest.raises(clonos.errors.AgentError, match="attach"):
        session.stats()
    again = clonos.attach(spark, **settings)
    with again.epoch("lost"):
        assert rows(numbers(spark).select("id", drawn("id"))) == first
    return again is not session


def where(spark: SparkSession, folder: Path) -> Any:
    """Whose agents there are."""
    one = clonos.attach(spark).config.driver_addr
    return [one, clonos.attach(spark, sharing_depth=2).config.driver_addr]


if __name__ == "__main__":
    import stateful

    name, url, folder = sys.argv[1:]
    program = getattr(stateful, name, None) or globals()[name]
    told = program(SparkSession.builder.remote(url).getOrCreate(), Path(folder))
    sys.stdout.write(json.dumps(told) + "\n")
