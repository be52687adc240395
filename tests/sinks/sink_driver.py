"""A driver to be killed whole: ``python sink_driver.py '<json>'``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import sink_scene


def main() -> None:
    """Run the query that the argument says."""
    plan = json.loads(sys.argv[1])
    spark = sink_scene.start_spark()
    plan["folder"] = Path(plan["folder"])
    sink_scene.run(spark, **plan)
    print("the query has ended")
    spark.stop()


if __name__ == "__main__":
    main()
