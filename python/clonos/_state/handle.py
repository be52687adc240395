"""The handle of a processor: Spark's class, for ``init`` on the driver and for tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import StructType

from clonos._state import refusals
from clonos._state.garbage import collector_paused
from clonos._state.map_state import ValueByKey
from clonos._state.states import ManyValues, OneValue, Place
from clonos._state.stored import NO_KEY, Cursor
from clonos._state.timers import Timers
from clonos._state.variables import Kind, TimeMode, Variable

if TYPE_CHECKING:
    from clonos import _core

Schema = StructType | str
State = OneValue | ManyValues | ValueByKey
KINDS: dict[str, type[State]] = {"value": OneValue, "list": ManyValues, "map": ValueByKey}
# What becomes of a processor, in Spark's words; the numbers say what comes after what.
PRE_INIT, CREATED, INITIALIZED, DATA_PROCESSED, TIMER_PROCESSED, CLOSED = range(6)
_NAMES = ("PRE_INIT", "CREATED", "INITIALIZED", "DATA_PROCESSED", "TIMER_PROCESSED", "CLOSED")


class Handle(StatefulProcessorHandle):
    """What a processor asks for its variables and timers.

    Parameters
    ----------
    time_mode : TimeMode
        What timers and TTL go by.
    parse : callable
        From a schema as it was given to a parsed one.
    """

    def __init__(self, time_mode: TimeMode, parse: Callable[[Schema], StructType]) -> None:
        self._time_mode = time_mode
        self._parse = parse
        self._variables: dict[str, Variable] = {}
        self._states: dict[str, State] = {}
        #: All variables that were asked for, those that were deleted again among them.
        self.asked: dict[str, Variable] = {}
        #: Names that were given to `deleteIfExists`.
        self.deleted: list[str] = []
        self.state = PRE_INIT
        self.cursor = Cursor()

    @property
    def variables(self) -> list[Variable]:
        """The variables there are, in the order in which they were asked for."""
        return list(self._variables.values())

    def getValueState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None
    ) -> ValueState:
        """Return a variable that holds one value."""
        made: Any = self._make("value", stateName, None, schema, ttlDurationMs)
        return made  # type: ignore[no-any-return]

    def getListState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None
    ) -> ListState:
        """Return a variable that holds a list."""
        made: Any = self._make("list", stateName, None, schema, ttlDurationMs)
        return made  # type: ignore[no-any-return]

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Return a variable that holds a value for each user key."""
        made: Any = self._make("map", stateName, userKeySchema, valueSchema, ttlDurationMs)
        return made  # type: ignore[no-any-return]

    def _make(
        self, kind: Kind, name: str, user_keys: Schema | None, values: Schema, ttl: int | None
    ) -> State:
        parsed_keys = None if user_keys is None else self._parse(user_keys)
        parsed = self._parse(values)
        reason = self._why_not(kind, name, ttl or 0)
        if reason is not None:
            raise refusals.refused(f"initializing {kind} state", reason)
        variable = Variable(name, kind, parsed_keys, parsed, ttl or 0)
        place = self._place(variable)
        self.asked[name] = self._variables[name] = variable
        self._states[name] = state = KINDS[kind](variable, place)
        return state

    def _place(self, _variable: Variable) -> Place:
        return Place(None, NO_KEY, self.cursor)

    def _why_not(self, kind: Kind, name: str, ttl: int) -> str | None:
        """Why there cannot be such a variable; in the order in which Spark looks."""
        there = self._variables.get(name)
        if there is not None and there.kind == kind:
            return refusals.exists_already(kind.capitalize(), name)
        if self.state > CREATED:
            return refusals.handle_state(f"get_{kind}_state", _NAMES[self.state])
        if ttl and self._time_mode is not TimeMode.PROCESSING_TIME:
            return refusals.ttl_time_mode(name, self._time_mode.value)
        if ttl < 0:
            return refusals.ttl_not_positive(name)
        if there is not None:
            return refusals.defined_twice(name)
        if not name or name != name.strip() or name == "default":
            return refusals.bad_name(name)
        return refusals.reserved_name(name) if name.startswith(("_", "$")) else None

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a variable of all keys."""
        if self.state > CREATED:
            reason = refusals.handle_state("delete_if_exists", _NAMES[self.state])
            raise refusals.refused("deleting state", reason)
        self.deleted.append(stateName)
        if self._variables.pop(stateName, None) is not None:
            self._states.pop(stateName).delete()

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Have the key called when the time has come."""
        self._timers("register timer", "register_timer").register(int(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Do not have the key called at that time."""
        self._timers("deleting timer", "delete_timer").delete(int(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """Timers of the key, the earliest first."""
        return iter(self._timers("listing timers", "list_timers").of_key())

    def _timers(self, doing: str, operation: str) -> Timers:
        if self._time_mode is TimeMode.NONE:
            raise refusals.refused(doing, refusals.time_mode(operation, self._time_mode.value))
        timers = self.timers()
        if timers is None or not INITIALIZED <= self.state < TIMER_PROCESSED:
            raise refusals.refused(doing, refusals.handle_state(operation, _NAMES[self.state]))
        return timers

    def timers(self) -> Timers | None:
        """Timers of the task, or ``None`` on the driver."""
        return None


class TaskHandle(Handle):
    """The handle in a task.

    Parameters
    ----------
    time_mode : TimeMode
    declared : mapping
        What ``init`` asked for on the driver, by name: schemas that are text are parsed there.
    variables : sequence of str
        Names of the task's variables, in its order.
    task : _core.StateTask
    """

    def __init__(
        self,
        time_mode: TimeMode,
        declared: Mapping[str, Variable],
        variables: Sequence[str],
        task: _core.StateTask,
    ) -> None:
        super().__init__(time_mode, self._as_it_is)
        self._declared = declared
        self._numbers = {name: number for number, name in enumerate(variables)}
        self._task = task
        self._task_timers = Timers(task, self.cursor)
        self.state = CREATED
        mode_has_times = time_mode is not TimeMode.NONE
        self.timer_values = (
            TimerValues(task.now_ms, task.watermark_ms) if mode_has_times else TimerValues(-1, -1)
        )

    @staticmethod
    def _as_it_is(schema: Schema) -> Any:
        return schema

    def _make(
        self, kind: Kind, name: str, user_keys: Schema | None, values: Schema, ttl: int | None
    ) -> State:
        del user_keys, values
        known = self._declared.get(name)
        if known is None or known.kind != kind or known.ttl_ms != (ttl or 0):
            message = (
                f"init asked for the {kind} state {name!r} here, and not on the driver: it must "
                "ask for the same variables wherever it runs"
            )
            raise refusals.refused(f"initializing {kind} state", message)
        return super()._make(kind, name, known.user_keys, known.values, ttl)

    def _place(self, variable: Variable) -> Place:
        return Place(self._task, self._numbers.get(variable.name, NO_KEY), self.cursor)

    def timers(self) -> Timers:
        """Timers of the task."""
        return self._task_timers

    def flush(self) -> None:
        """Write all that was changed."""
        with collector_paused():
            for state in self._states.values():
                state.flush(self._task)
            self._task_timers.flush()
