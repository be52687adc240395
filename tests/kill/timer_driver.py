"""A driver with a stateful stream to be killed: ``python timer_driver.py '<json>'``.

It says in files what happened: each batch by its number, with what fired.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dying import session_of
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import clonos


class Alarm(StatefulProcessor):
    """Registers timers so many milliseconds from the batch's time as its rows say."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            self.handle.registerTimer(now + row.n)
        yield Row(id=key[0], what="rows", token=clonos.uuid4().hex)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(id=key[0], what="timer", token=clonos.uuid4().hex)


def main() -> None:
    plan = json.loads(sys.argv[1])
    folder = Path(plan["folder"])
    spark = session_of(3)
    with clonos.attach(spark, checkpoint_dir=folder / "logs"):
        rows = spark.readStream.schema("id string, n long").json(str(folder / "in"))
        alarms = clonos.transform_with_state(
            *(rows.groupBy("id"), Alarm(), "id string, what string, token string"),
            *("update", "processingTime"),
            uid="alarm",
        )

        def keep(batch: Any, number: int) -> None:
            found = [row.asDict() for row in batch.collect()]
            (folder / f"{plan['name']}-{number}.json").write_text(json.dumps(found))
            if number == plan.get("hang"):
                # Its tasks are done, and it is not committed.
                (folder / "hangs").touch()
                time.sleep(600)

        writer = alarms.writeStream.outputMode("update").foreachBatch(keep)
        writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    main()
