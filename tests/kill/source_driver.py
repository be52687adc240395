"""A driver that reads a socket, to be killed whole: ``python source_driver.py '<json>'``.

Keys of the JSON: folder, attach (arguments of attach), port (of the sender), count (lines until it
ends), hang ([batch, "taken"] where it is to be killed, or null).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from dying import session_of, told_to

import clonos

BATCH_ROWS = 4_000


def main() -> None:
    """Run what the argument says."""
    plan = json.loads(sys.argv[1])
    folder, told = Path(plan["folder"]), told_to(plan)
    spark = session_of(2)
    with clonos.attach(spark, **plan["attach"]):
        lines = spark.readStream.format("clonos-socket").options(
            host="127.0.0.1",
            port=plan["port"],
            acknowledge="true",
            maxRecordsPerBatch=BATCH_ROWS,
            # Parts of 64 KiB.
            disk="512KiB",
        )

        def sink(rows: Any, number: int) -> None:
            with (folder / "batches.txt").open("a") as file:
                file.write(json.dumps([number, [row.value for row in rows.collect()]]) + "\n")
            told(number, "taken")

        rows = lines.load()
        secret = plan["attach"]["storage_options"]["secret_access_key"]
        assert secret not in rows._jdf.queryExecution().toString()
        query = rows.writeStream.foreachBatch(sink)
        query = query.option("checkpointLocation", str(folder / "checkpoint")).start()
        while query.isActive and len(lines_of(folder)) < plan["count"]:
            time.sleep(0.1)
        query.stop()
        if query.exception() is not None:
            raise query.exception()
    spark.stop()
    (folder / "done").touch()


def lines_of(folder: Path) -> list[str]:
    """Return what the query gave, by its batches; one that came again gave the same."""
    batches: dict[int, list[str]] = {}
    file = folder / "batches.txt"
    text = file.read_text() if file.exists() else ""
    # The last one may be on its way.
    for line in text[: text.rfind("\n") + 1].splitlines():
        number, lines = json.loads(line)
        assert batches.setdefault(number, lines) == lines, f"batch {number} differs"
    return [line for number in sorted(batches) for line in batches[number]]


if __name__ == "__main__":
    main()
