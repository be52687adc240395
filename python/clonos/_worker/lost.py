"""What to do when a log that had been published can be read nowhere any more."""

from __future__ import annotations

import logging

from clonos import _core
from clonos._versions import spark_version
from clonos._worker.place import Place
from clonos.errors import CausalLogLost

CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum.enabled"
_log = logging.getLogger("clonos")


def check_lost(
    opened: _core.ResultTask | _core.ServiceTask,
    config: _core.SessionConfig,
    uid: str,
    place: Place,
) -> None:
    """Go on live, or raise, as ``on_lost`` says; never in silence.

    With ``"rollback"`` the task goes on live only where Spark's own checksum of shuffle output
    notices other values and rolls the job back: it compares the attempts of one stage, and nothing
    with that check off.

    Raises
    ------
    CausalLogLost
        If ``on_lost="rollback"`` and Spark would not notice.
    """
    if not opened.lost:
        return
    task = f"{uid}@{place.query}/{place.epoch}/{place.partition}"
    # Of a name, an earlier block; else an earlier job. A micro-batch is in one piece.
    earlier = "it was recorded in an earlier job, whose epoch is over (use one session.epoch), or "
    message = (
        f"the log of task {task} is lost: {earlier if isinstance(place.epoch, str) else ''}more "
        f"agents failed at once than sharing_depth={config.sharing_depth} covers, and there is no "
        "checkpoint_dir that has it"
    )
    why = _why_unnoticed(opened.of_others, place)
    if config.on_lost == "rollback" and why is not None:
        advice = f"{message}. {why}, so Spark would not notice other values"
        raise CausalLogLost(advice, "CAUSAL_LOG_LOST")
    _log.warning("%s; going on live (on_lost=%r)", message, config.on_lost)


def _why_unnoticed(of_others: bool, place: Place) -> str | None:
    """Why Spark would not notice other values; none if it would."""
    from pyspark import TaskContext

    # The checksum is of shuffles between the operators of a query.
    if place.execution is None:
        return "this is a job over RDDs"
    context = TaskContext.get()
    properties: dict[str, str] = (context._localProperties if context else None) or {}
    default = "true" if spark_version() >= (4, 2) else "false"
    if properties.get(CHECKSUM, default) != "true":
        return f"{CHECKSUM} is off"
    return "an earlier job of the epoch recorded some of it" if of_others else None
