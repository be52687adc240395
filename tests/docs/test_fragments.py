"""The short pieces of code of README and pages run as they stand, where what they name is known.

A piece is a ```py block; whole programs are ```python blocks, and have tests of their own.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import httpx
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import clonos
from clonos import causal, testing

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sinks"))
sys.path.insert(0, str(ROOT / "tests" / "sources"))

pytestmark = pytest.mark.timeout(360)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def fragments(page: str) -> list[str]:
    return re.findall(r"```py\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(
    page: str, number: int, names: dict[str, Any], replaced: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run a page's fragment number `number` where `names` are known; what it defines, too."""
    code = fragments(page)[number]
    for old, new in (replaced or {}).items():
        assert old in code
        code = code.replace(old, new)
    known = {"__name__": "fragment", "clonos": clonos, "causal": causal, **names}
    exec(compile(code, f"{page}, fragment {number}", "exec"), known)
    return known


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", value=False)
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    builder = builder.config("spark.sql.shuffle.partitions", 3)
    spark = builder.config("spark.log.level", "OFF").getOrCreate()
    yield spark
    spark.stop()


@pytest.fixture
def session(spark: Any) -> Iterator[clonos.Session]:
    with clonos.attach(spark) as attached:
        yield attached


class Service:
    """A real HTTP server: where an address is, and what it was sent."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.sent: list[tuple[str, Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(parse_qs(urlparse(self.path).query)["ip"][0])
                self._answer({"country": "GR"})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.sent.append((self.headers["Idempotency-Key"], json.loads(body)))
                self._answer({})

            def _answer(self, value: Any) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.server.shutdown()


def test_the_first_lines_of_the_readme(spark: Any, session: clonos.Session) -> None:
    async def ask_the_model(text: str) -> str:
        return text.upper()

    articles = spark.createDataFrame([("a",), ("b",)], "text string")
    run("README.md", 0, {"articles": articles, "ask_the_model": ask_the_model})
    rows = spark.table("summaries").collect()
    assert sorted((row.text, row.summary) for row in rows) == [("a", "A"), ("b", "B")]
    assert session.stats().totals.live == len(rows)


@pytest.mark.timeout(800)
def test_the_readme_from_end_to_end(spark: Any, session: clonos.Session, tmp_path: Path) -> None:
    from pyspark.sql.functions import explode, split, window
    from sender import Sender

    is_banned = causal("boolean", uid="banned")(lambda word: word == "line")
    tools = {"explode": explode, "split": split, "window": window, "is_banned": is_banned}
    # Two hundred state stores for two words take a minute on two cores.
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    # It sends "line 0" and "line 1".
    with Sender(2, acknowledged=False) as sender:
        names = {"spark": spark, "host": "127.0.0.1", "port": sender.port, **tools}
        counts = run("README.md", 1, names)["counts"]
        writer = counts.writeStream.format("memory").queryName("counted").outputMode("complete")
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        try:
            testing.wait_until(
                lambda: sum(row["count"] for row in spark.table("counted").collect()) == 2,
                "both numbers",
                timeout=300,
                interval=0.5,
            )
        finally:
            query.stop()
            spark.conf.unset("spark.sql.shuffle.partitions")
    assert {row.word for row in spark.table("counted").collect()} == {"0", "1"}


def test_a_function_by_its_name_in_sql(
    spark: Any, session: clonos.Session, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.range(20).selectExpr("id", "string(id) text").createOrReplaceTempView("reviews")
    names = {"spark": spark, "session": session}
    run("docs/compatibility.md", 0, names)
    points = [float(line.split("|")[2]) for line in capsys.readouterr().out.splitlines()[3:-2]]
    assert points, "half of twenty"
    assert all(0.5 < one < 1 for one in points)
    with session.epoch("tuesday"):
        first, again = (spark.sql("select * from scored").collect() for _ in range(2))
        assert first == again
        assert len({row.points for row in first}) == 20


def test_an_error_is_found(
    spark: Any, session: clonos.Session, capsys: Any, tmp_path: Path
) -> None:
    # What the fragment writes must not stay in the folder that Spark was started in.
    jvm, hadoop = spark._jvm.org.apache.hadoop, spark.sparkContext._jsc.hadoopConfiguration()
    jvm.fs.FileSystem.get(hadoop).setWorkingDirectory(jvm.fs.Path(str(tmp_path)))

    # Rows that look alike had different answers, and come in another order.
    def equal(partitions: int) -> Any:
        return spark.range(0, 60, 1, partitions).selectExpr("string(id % 3) word")

    drawn = causal("double", uid="drawn")(lambda _word: __import__("random").random())
    with suppress(InterruptedError), session.epoch("found"):
        equal(4).select(drawn("word").alias("v")).collect()
        raise InterruptedError
    with session.epoch("found"):
        scored = equal(1).select(drawn("word").alias("v"))
        run("docs/errors.md", 0, {"scored": scored})
    assert "REPLAY_DIVERGENCE" in capsys.readouterr().out


def test_groups(spark: Any, session: clonos.Session) -> None:
    class Model:
        def complete(self, text: str) -> str:
            return text.lower()

    reviews = spark.createDataFrame([("x", "Good"), ("y", "Bad")], "product string, review string")
    names = {"reviews": reviews, "llm": Model(), "pd": pd}
    kept = {"reviews.groupBy": "result = reviews.groupBy"}
    result = run("docs/groups.md", 0, names, kept)["result"]
    rows = {(row.product, row.summary) for row in result.collect()}
    assert rows == {("x", "sum up: good"), ("y", "sum up: bad")}


def test_one_answer_per_value(
    spark: Any, session: clonos.Session, service: Service, tmp_path: Path
) -> None:
    visits = spark.createDataFrame([("1.1.1.1",), ("1.1.1.1",), ("2.2.2.2",)], "ip string")
    path = str(tmp_path / "visits")
    names = {"visits": visits, "session": session, "httpx": httpx, "URL": service.url, "path": path}
    run("docs/per_value.md", 0, names)
    assert [row.country for row in spark.read.parquet(path).collect()] == ["GR"] * 3
    assert sorted(service.asked) == ["1.1.1.1", "2.2.2.2"]


def test_a_notification_for_each_row(
    spark: Any, session: clonos.Session, service: Service, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text('{"id": 1}\n{"id": 2}\n')
    alerts = spark.readStream.schema("id long").json(str(tmp_path / "in"))
    names = {"alerts": alerts, "session": session, "http": httpx, "URL": service.url}
    kept = {"alerts.writeStream": "writer = alerts.writeStream"}
    writer = run("docs/sinks.md", 1, names, kept)["writer"]
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert {row["id"] for _, row in service.sent} == {1, 2}
    assert len({key for key, _ in service.sent}) == 2


def test_counts_are_put_in_the_place_of_older_ones(
    spark: Any, session: clonos.Session, tmp_path: Path
) -> None:
    from sink_servers import Postgres

    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    server = Postgres()
    try:
        old = 'spark.readStream.format("rate").load()'
        new = 'spark.readStream.schema("value long").json(FOLDER)'
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "rows.json").write_text(
            "".join(f'{{"value": {n}}}\n' for n in range(20))
        )
        with psycopg.connect(server.url) as link:
            link.execute("CREATE TABLE counts (word bigint PRIMARY KEY, count bigint)")
        names = {"spark": spark, "FOLDER": str(tmp_path / "in")}
        url = {"postgresql://localhost/shop": server.url, old: new}
        writer = run("docs/sinks.md", 0, names, url)["writer"]
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        with psycopg.connect(server.url) as link:
            found = link.execute("SELECT count(*), sum(count) FROM counts").fetchall()
        assert found == [(10, 20)]
    finally:
        server.close()


def test_keyed_state(spark: Any, session: clonos.Session) -> None:
    rows = [("s1", 120.0), ("s1", 90.0), ("s2", 101.0)]
    readings = spark.createDataFrame(rows, "sensor string, temperature double")
    for fragment in range(2):
        alarms = run("docs/state.md", fragment, {"readings": readings})["alarms"]
        counts = {(row.sensor, row["count"]) for row in alarms.collect()}
        assert counts == {("s1", 1), ("s2", 1)}


def test_an_arrow_processor_with_timers_ends_sessions(
    spark: Any, session: clonos.Session, tmp_path: Path
) -> None:
    seen = [("u", "start", 0), ("u", "end", 20), ("v", "start", 100)]
    for number, (user, page, second) in enumerate(seen):
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)
        row = {"user": user, "page": page, "at": at.isoformat(), "at_ms": at.timestamp() * 1000}
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(row))
        os.utime(file, (1_700_000_000 + number,) * 2)
    schema = "user string, page string, at timestamp, at_ms double"
    views = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(tmp_path))
    found: list[Any] = []
    views = views.withColumn("at_ms", views.at_ms.cast("long")).withWatermark("at", "1 second")
    known = {"views": views, "pa": pa, "pc": pc}
    sessions = run("docs/state.md", 2, known)["sessions"]
    writer = sessions.writeStream.foreachBatch(lambda rows, _: found.extend(rows.collect()))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert [tuple(row) for row in found] == [("u", 2, ["start", "end"])]
