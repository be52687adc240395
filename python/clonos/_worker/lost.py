"""What to do when a log that had been published can be read nowhere any more."""

from __future__ import annotations

import logging

from clonos import _core
from clonos._versions import spark_version
from clonos._worker.place import Place
from clonos.errors import CausalLogLost

CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum.enabled"
_log = logging.getLogger("clonos")


def check_lost(lost: bool, config: _core.SessionConfig, uid: str, place: Place) -> None:
    """Go on live, or raise, as ``on_lost`` says; never in silence.

    With ``"rollback"`` the task goes on live only where Spark's own checksum of shuffle output
    notices other values and rolls the job back; with that check off, nothing would.

    Raises
    ------
    CausalLogLost
        If ``on_lost="rollback"`` and Spark would not notice.
    """
    if not lost:
        return
    task = f"{uid}@{place.query}/{place.epoch}/{place.partition}"
    earlier = "it was recorded in an earlier job, whose epoch is over (use one session.epoch), or "
    message = (
        f"the log of task {task} is lost: {earlier if place.query.startswith('app:') else ''}more "
        f"agents failed at once than sharing_depth={config.sharing_depth} covers, and there is no "
        "checkpoint_dir that has it"
    )
    if config.on_lost == "rollback" and not _spark_notices(place):
        why = f"{CHECKSUM} is off" if place.execution else "this is a job over RDDs"
        advice = f"{message}. {why}, so Spark would not notice other values"
        raise CausalLogLost(advice, "CAUSAL_LOG_LOST")
    _log.warning("%s; going on live (on_lost=%r)", message, config.on_lost)


def _spark_notices(place: Place) -> bool:
    from pyspark import TaskContext

    # The checksum is of shuffles between the operators of a query.
    if place.execution is None:
        return False
    context = TaskContext.get()
    properties: dict[str, str] = (context._localProperties if context else None) or {}
    default = "true" if spark_version() >= (4, 2) else "false"
    return properties.get(CHECKSUM, default) == "true"
