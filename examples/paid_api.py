"""A table through a paid model: a job that is killed at 60 % and run again pays for no row twice.

    python examples/paid_api.py

The model is a local HTTP server that charges for every call, takes its time, and answers in other
words each time. The same job runs as plain Spark and as Clonos, is killed with SIGKILL, driver and
all, when 60 % of the rows are answered, and is run again.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import httpx
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.table import Table

import clonos
from clonos import causal, testing
from clonos._driver.java import ensure_java

SECONDS_PER_CALL = 0.08
PARTITIONS = 4
SLICE_ROWS = 120
EPOCH = "reviews-2026-11-20"


# --- the job ------------------------------------------------------------------------------------


def summariser(url: str, concurrency: int, flush: str = "call") -> Any:
    """Return the causal function: `concurrency` calls at a time, each answer stable at once.

    With flush="batch" answers become stable together, and what was answered since the last batch
    left is asked again after a failure.
    """

    def make_client() -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=30)

    @causal("string", uid="summarise", concurrency=concurrency, flush=flush, setup=make_client)
    async def summarise(client: httpx.AsyncClient, review: str) -> str:
        # A call whose answer was on its way when all died is made again, under the same key.
        headers = {"Idempotency-Key": clonos.idempotency_key()}
        return str((await client.post(url, content=review, headers=headers)).text)

    return summarise


def plain_summariser(url: str) -> Any:
    """Return what one writes without Clonos."""
    from pyspark.sql.functions import udf

    client: list[httpx.Client] = []

    def summarise(review: str) -> str:
        if not client:
            client.append(httpx.Client(timeout=30))
        return client[0].post(url, content=review).text

    return udf(summarise, "string").asNondeterministic()


def run_job(kind: str, url: str, folder: Path, rows: int, concurrency: int) -> None:
    """Run the job once, in this process."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", value=False)
    spark = builder.config("spark.log.level", "OFF").getOrCreate()
    reviews = spark.range(0, rows, 1, PARTITIONS).selectExpr("concat('review ', id) as review")
    if kind == "plain":
        summarise = plain_summariser(url)
        _write(reviews, summarise, folder)
        return
    session = clonos.attach(spark, checkpoint_dir=folder / "clonos")
    with session.epoch(EPOCH):
        _write(reviews, summariser(url, concurrency), folder)
    times = {}
    for calls in (1, concurrency):
        slice_of_it = spark.range(0, SLICE_ROWS, 1, 1).selectExpr("concat('slice ', id) as review")
        begun = time.monotonic()
        slice_of_it.select(summariser(url, calls, "batch")("review")).collect()
        times[calls] = time.monotonic() - begun
    (folder / "times.json").write_text(json.dumps(times))


def _write(reviews: Any, summarise: Any, folder: Path) -> None:
    table = reviews.select("review", summarise("review").alias("summary"))
    table.write.mode("overwrite").parquet(str(folder / "table"))


# --- the paid service ---------------------------------------------------------------------------


class Service:
    """Charges for every call; a call repeated under the same key is answered from memory."""

    def __init__(self) -> None:
        self.answers: dict[str, list[str]] = defaultdict(list)
        self.charged = 0
        self.repeated = 0
        self._by_key: dict[str, str] = {}
        self._lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                sent = self.rfile.read(length)
                if len(sent) < length:
                    return  # the caller was killed while it sent: nothing was asked
                review = sent.decode()
                body = service.answer(review, self.headers.get("Idempotency-Key", "")).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

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

    def answer(self, review: str, key: str) -> str:
        """Answer in words of chance, and charge, unless the key is known."""
        time.sleep(SECONDS_PER_CALL)
        with self._lock:
            if key and key in self._by_key:
                self.repeated += 1
                return self._by_key[key]
            text = f"{review}, in short: {random.randbytes(6).hex()}"
            self.charged += 1
            self._by_key[key] = text
            if review.startswith("review"):
                self.answers[review].append(text)
            return text


# --- killing it, and looking at what is left ----------------------------------------------------


def trial(kind: str, folder: Path, rows: int, kill_at: float, concurrency: int) -> dict[str, Any]:
    """Run the job, kill it, run it again; what it cost and what came of it."""
    service = Service()
    folder.mkdir()
    command = [sys.executable, __file__, "--job", kind, "--url", service.url]
    command += ["--folder", str(folder), "--rows", str(rows), "--concurrency", str(concurrency)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

    def start() -> subprocess.Popen[bytes]:
        log = (folder / "job.log").open("ab")
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )

    first = start()
    wanted = int(rows * kill_at)
    answered = lambda: len(service.answers) >= wanted or first.poll() is not None  # noqa: E731
    testing.wait_until(answered, f"{wanted} answers (see {folder})", 300)
    testing.kill_tree(first.pid)
    first.wait()
    before = service.charged
    second = start()
    if second.wait() != 0:
        raise RuntimeError(f"the second run failed: see {folder / 'job.log'}")
    table = pq.read_table(folder / "table").to_pylist()
    calls = sum(map(len, service.answers.values()))
    changed = sum(row["summary"] != service.answers[row["review"]][0] for row in table)
    times = folder / "times.json"
    return {
        "job": "plain Spark" if kind == "plain" else "Clonos",
        "rows": len(table),
        "paid for before the kill": before,
        "paid for in all": calls,
        "paid for twice": calls - len(service.answers),
        "asked again, not paid for": service.repeated,
        "answers that changed": changed,
        "seconds for a slice": json.loads(times.read_text()) if times.exists() else None,
    }


def show(trials: list[dict[str, Any]], concurrency: int) -> None:
    """Print what the runs came to."""
    table = Table(title="A job over a paid service, killed and run again")
    names = [name for name in trials[0] if name != "seconds for a slice"]
    for name in names:
        table.add_column(name, justify="left" if name == "job" else "right")
    for result in trials:
        table.add_row(*[str(result[name]) for name in names])
    console = Console()
    console.print(table)
    one, many = trials[-1]["seconds for a slice"].values()
    console.print(
        f"async def, {SLICE_ROWS} rows in one task: {one:.2f} s one call at a time, "
        f"{many:.2f} s with concurrency={concurrency}: {one / many:.1f} times as fast"
    )


def main(
    rows: Annotated[int, typer.Option(help="Rows of the table.")] = 400,
    kill_at: Annotated[float, typer.Option(help="Share of rows answered when it is killed.")] = 0.6,
    concurrency: Annotated[int, typer.Option(help="Calls at a time in each task.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    job: Annotated[str, typer.Option(hidden=True)] = "",
    url: Annotated[str, typer.Option(hidden=True)] = "",
    folder: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the job as plain Spark and as Clonos; exit code 1 if Clonos paid twice."""
    ensure_java()
    if job and folder:
        run_job(job, url, folder, rows, concurrency)
        return
    work = Path(tempfile.mkdtemp(prefix="paid-api-"))
    kinds = ("plain", "clonos")
    trials = [trial(kind, work / kind, rows, kill_at, concurrency) for kind in kinds]
    if as_json:
        print(json.dumps(trials))
    else:
        show(trials, concurrency)
    ours = trials[-1]
    good = ours["paid for twice"] == 0 and ours["answers that changed"] == 0
    raise typer.Exit(0 if good and ours["rows"] == rows else 1)


if __name__ == "__main__":
    typer.run(main)
