"""``clonos demo``: the same pipelines as plain Spark and as Clonos, with processes killed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from clonos._driver.java import JavaMissingError, ensure_java


def run(out_dir: Path, keep: bool = False) -> int:
    """Run the demo; about two minutes.

    Parameters
    ----------
    out_dir : Path
        Gets the picture, ``demo.png``, and in ``work`` what the runs wrote.
    keep : bool
        Keep ``work`` even if all went well.

    Returns
    -------
    int
        Exit code: 0 if Clonos kept its promises.
    """
    from clonos.cli.demo import report
    from clonos.cli.demo.picture import draw
    from clonos.cli.demo.processes import service, spark_home
    from clonos.cli.demo.trials import TRIALS, World, run_trial

    try:
        ensure_java()
    except JavaMissingError as error:
        report.fail(str(error))
        return 2
    work = out_dir.absolute() / "work"
    # Runs of before would be mistaken for this one's.
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    begun = time.monotonic()
    record = work / "service.jsonl"
    with service(record) as url, report.Progress([t.title for t in TRIALS]) as progress:
        world = World(work, spark_home(work), url, record)
        verdicts = []
        for trial in TRIALS:
            verdicts.append(run_trial(trial, world, progress.begin(trial.title)))
            progress.end(verdicts[-1])
    picture = draw(verdicts, out_dir / "demo.png")
    broken = report.show(verdicts, picture, time.monotonic() - begun)
    if broken or keep:
        report.say(f"What the runs wrote is in {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)
    return 1 if broken else 0
