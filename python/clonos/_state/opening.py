"""Opens the state of a task: where it is kept, or for the task alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clonos import _core
from clonos._services import current
from clonos._worker.place import addressed, current_place
from clonos.errors import ConfigError, StateLost

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from clonos._state.program import Program
    from clonos._worker.place import Place


# Rows of a task in memory; of more, those of a range of keys at a time.
ROWS_BYTES = 128 << 20
# How much of each list and map is loaded with its key; of more, what is asked for.
PART_BYTES = 64 << 10


def open_task(program: Program) -> _core.StateTask:
    """Open the state that the current task reads and writes.

    A batch query keeps none: its state is empty at first, and gone at the end.

    Raises
    ------
    ConfigError
        If it is a stream's, and there is no session that keeps it.
    StateLost
        If the operator was adopted, and is new in a stream that has gone on without it.
    """
    recorder = current.get().recorder
    task = recorder if isinstance(recorder, _core.ServiceTask) else None
    config = None if program.config is None else _core.SessionConfig.from_bytes(program.config)
    place = current_place("" if config is None else config.app_id, "rdd")
    state_from = program.state_from
    in_batch = place is not None and isinstance(place.epoch, int)
    if task is None and in_batch and program.is_kept:
        message = (
            f"the state of {program.operator} is kept by a session with guarantee='exactly_once': "
            "call clonos.attach(spark) first"
        )
        raise ConfigError(message, "CONFIG")
    opened = _core.StateTask.open(
        task,
        query="" if place is None else place.query,
        operator=program.operator,
        epoch="" if place is None or not program.is_kept else place.epoch,
        partition=0 if place is None else _partition(program, place, task),
        partitions=program.partitions,
        keys=program.key_schema,
        variables=[program.declared[name].for_core() for name in program.variables],
        deleted=list(program.deleted),
        state_from=state_from and (_core.Location(state_from[0], config), state_from[1]),
        # In the columns of a processor of all keys, lists are whole.
        part_bytes=None if program.flavour == "arrow" else PART_BYTES,
    )
    if config is not None and place is not None and program.is_kept:
        _check_begun(program, opened, config, place)
    return opened


def gather(
    program: Program, task: _core.StateTask, batches: Iterator[pa.RecordBatch]
) -> _core.GatheredRows:
    """Take all rows of a task: nothing is decided before the last of them is there.

    A processor of all keys is given all of them at once.
    """
    config = None if program.config is None else _core.SessionConfig.from_bytes(program.config)
    most = None if program.flavour == "arrow" else ROWS_BYTES
    rows = task.gathering(list(program.keys), most, config)
    for batch in batches:
        rows.add(batch)
    return rows


def _check_begun(
    program: Program, opened: _core.StateTask, config: _core.SessionConfig, place: Place
) -> None:
    """Refuse to begin with nothing where Spark's own would go on, or fail."""
    is_late = program.is_adopted and isinstance(place.epoch, int) and place.epoch > 0
    if is_late and opened.version is None and config.on_lost == "rollback":
        message = (
            f"{program.operator} has no state from before batch {place.epoch} of query "
            f"{place.query}: its class was called otherwise, or the batches before were Spark's "
            "own or those of another session. Give it the name that it had, with "
            "clonos.transform_with_state(…, uid=…); begin with another checkpointLocation; or "
            "attach once with on_lost='at_least_once', and it begins with nothing"
        )
        raise StateLost(message, "STATE_LOST")


def _partition(program: Program, place: Place, task: _core.ServiceTask | None) -> int:
    """Which of the operator's partitions this is.

    Spark's number is another one behind a union or a ``coalesce``. Frames say to which they were
    sent. Where nobody sent any, those of a union still are neighbours, and of a ``coalesce`` each
    task has some that are, one after the other: it has no more to go by than how many they are.
    """
    sent_to = addressed.get()
    if sent_to is not None:
        return sent_to
    count = program.partitions
    if task is None:
        return place.partition % count
    number, tasks = task.partition, task.tasks
    if tasks is not None and tasks < count:
        number = number * count // tasks + task.part
    return number % count
