"""Deliveries to a service that is often down: what failed is tried again later, and counted.

    python examples/retry_queue.py

A stream posts orders to a local HTTP server that refuses half of them. What was refused goes into a
loop with its number of tries and comes back after a while; after so many tries it is given up. The
job is killed with SIGKILL, driver and all, in the middle, and started again. In the end the tries
in the table are compared with what the service counted.
"""

import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

import clonos
from clonos import causal, testing
from clonos._driver.java import ensure_java

MOST_TRIES = 4
DELAY = "1 second"
FILES = 3
OK = 200


# --- the job ------------------------------------------------------------------------------------


def delivery_to(url: str) -> Any:
    """Return the causal function: each status is stable as soon as it is there."""

    @causal("int", uid="deliver", flush="call")
    def deliver(order: int, tries: int) -> int:
        # The same key if this very try has to be made again: the service counts it once.
        headers = {"Idempotency-Key": clonos.idempotency_key()}
        body = {"order": order, "try": tries}
        return httpx.post(url, json=body, headers=headers, timeout=30).status_code

    return deliver


def run_job(url: str, folder: Path, orders: int) -> None:
    """Run the stream until each order is delivered or given up."""
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col, lit

    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", value=False)
    spark = builder.config("spark.log.level", "OFF").getOrCreate()
    session = clonos.attach(spark, checkpoint_dir=folder / "clonos")
    loop, results = str(folder / "loop"), folder / "results.db"

    new = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    new = new.json(str(folder / "orders")).withColumn("tries", lit(0))
    again = spark.readStream.format("clonos-loop").schema("id long, tries int")
    again = again.option("delay", DELAY).load(loop)
    tried = new.unionByName(again).withColumn("tries", col("tries") + 1)
    tried = tried.withColumn("status", delivery_to(url)("id", "tries"))

    @session.foreach_batch
    def write(batch: Any, epoch: int) -> None:
        done = batch.where(f"status = {OK} or tries = {MOST_TRIES}")
        done = done.write.format("clonos-sqlite").option("path", str(results))
        done.option("table", "done").option("epoch", epoch).mode("append").save()
        failed = batch.where(f"status != {OK} and tries < {MOST_TRIES}").select("id", "tries")
        failed.write.format("clonos-loop").mode("append").save(loop)

    writer = tried.writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    while query.isActive and len(rows_of(results)) < orders:
        time.sleep(0.1)
    query.processAllAvailable()
    query.stop()
    session.stop()


def rows_of(results: Path) -> list[tuple[int, int, int]]:
    """Return order, tries and last status of what is done."""
    with closing(sqlite3.connect(results)) as base:
        try:
            return base.execute("SELECT id, tries, status FROM done ORDER BY id").fetchall()
        except sqlite3.OperationalError:  # no table yet
            return []


# --- the service --------------------------------------------------------------------------------


class Service:
    """Refuses half of what it is asked; a call repeated under the same key is no other try."""

    def __init__(self) -> None:
        self.tries: dict[int, dict[str, int]] = defaultdict(dict)
        self.repeated = 0
        self._lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = service.answer(sent["order"], self.headers["Idempotency-Key"])
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_arguments: Any) -> None:
                pass

        server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}/"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def answer(self, order: int, key: str) -> int:
        """Answer by chance; the same for a key that is known."""
        with self._lock:
            known = self.tries[order]
            if key in known:
                self.repeated += 1
            return known.setdefault(key, random.choice((OK, 503)))

    def count(self) -> int:
        """How many tries it has seen."""
        with self._lock:
            return sum(map(len, self.tries.values()))


# --- killing it, and looking at what is left ----------------------------------------------------


def trial(orders: int) -> dict[str, Any]:
    """Run the job, kill it, run it again; what the table says, and what the service says."""
    folder = Path(tempfile.mkdtemp(prefix="retry-queue-"))
    (folder / "orders").mkdir()
    for number in range(FILES):
        lines = (json.dumps({"id": n}) + "\n" for n in range(number, orders, FILES))
        (folder / "orders" / f"{number}.json").write_text("".join(lines))
    service = Service()
    command = [sys.executable, __file__, "--job", str(folder)]
    command += ["--url", service.url, "--orders", str(orders)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

    def start() -> subprocess.Popen[bytes]:
        log = (folder / "job.log").open("ab")
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )

    first = start()
    # Later than the first tries: some have come back.
    wanted = orders + orders // 4
    asked = lambda: service.count() >= wanted or first.poll() is not None  # noqa: E731
    testing.wait_until(asked, f"{wanted} tries (see {folder})", 300)
    testing.kill_tree(first.pid)
    first.wait()
    before = service.count()
    if start().wait() != 0:
        raise RuntimeError(f"the second run failed: see {folder / 'job.log'}")
    rows = rows_of(folder / "results.db")
    return {
        "orders": len({order for order, _, _ in rows}),
        "rows": len(rows),
        "delivered": sum(status == OK for _, _, status in rows),
        "given up": sum(status != OK for _, _, status in rows),
        "tries before the kill": before,
        "tries in the table": sum(tries for _, tries, _ in rows),
        "tries that the service saw": service.count(),
        "orders with other tries": sum(len(service.tries[o]) != tries for o, tries, _ in rows),
        "calls made again": service.repeated,
    }


def main(
    orders: Annotated[int, typer.Option(help="Orders to deliver.")] = 90,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    job: Annotated[Path | None, typer.Option(hidden=True)] = None,
    url: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Run the job, kill it and run it again; exit code 1 if a try is missing or there twice."""
    ensure_java()
    if job:
        run_job(url, job, orders)
        return
    result = trial(orders)
    if as_json:
        print(json.dumps(result))
    else:
        table = Table(title="A retry queue, killed in the middle and started again")
        for name in result:
            table.add_column(name, justify="right")
        table.add_row(*map(str, result.values()))
        Console().print(table)
    once = result["orders"] == result["rows"] == orders
    raise typer.Exit(0 if once and result["orders with other tries"] == 0 else 1)


if __name__ == "__main__":
    typer.run(main)
