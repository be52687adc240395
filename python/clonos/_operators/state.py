"""``transform_with_state``: Spark's stateful processors, over an exchange and state of our own."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clonos import _attached, _core
from clonos._arrow_types import arrow_schema
from clonos._config import choice, parse_location
from clonos._operators.columns import is_client
from clonos._operators.declaration import session_conf
from clonos._operators.exchange import SHUFFLE_PARTITIONS, exchange_with, map_stage
from clonos._operators.grouped import Key, grouping
from clonos._operators.initial_state import INITIAL, quoted, with_initial
from clonos._operators.spec import spec_of
from clonos._state.batch_processor import STARTS, BatchProcessor
from clonos._state.program import EventTime, Flavour, Program
from clonos._state.variables import TIME_MODES, TimeMode
from clonos.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Broadcast, SparkContext
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

    from clonos._operators.grouped import Grouped
    from clonos._state.handle import Handle

WATERMARK = "spark.watermarkDelayMs"
# Half of what Spark pickles into a plan.
LARGE_BYTES = 1 << 19
# Columns of keys that are expressions; gone before the processor.
_COMPUTED = "_clonos_key_"
OUTPUT_MODES = ("append", "complete", "update")


class StatefulStage:
    """What runs in the tasks: a processor over the rows that an exchange brought together."""

    def __init__(self, program: Program, context: SparkContext | None) -> None:
        pickled = _pickled(program)
        self._program: Program | None = program
        self._broadcast: Broadcast[bytes] | None = None
        # A plan of Spark Connect's, which has no context, holds all of it in any case.
        if len(pickled) > LARGE_BYTES and context is not None:
            # Spark would send all of it apart from the plan, and the mark with it by which the
            # plan's order tells this use from another: their states would be taken for each other.
            self._program, self._broadcast = None, context.broadcast(pickled)

    def sent(self) -> Program:
        """What was sent, here or in a worker."""
        if self._program is not None:
            return self._program
        assert self._broadcast is not None  # noqa: S101  # one of the two
        program: Program = pickle.loads(self._broadcast.value)
        return program

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run it over one partition."""
        from clonos._state.opening import open_task
        from clonos._state.run import run

        # Not before the first step: services are recorded from then on. And not before there is
        # input: only frames say which partition this is.
        first = next(batches, None)
        given = batches if first is None else itertools.chain((first,), batches)
        program = self.sent()
        yield from run(program, open_task(program), given)


def transform_with_state(  # noqa: PLR0917  # the order of Spark's
    grouped: Grouped,
    processor: StatefulProcessor | BatchProcessor,
    schema: StructType | str,
    output_mode: str,
    time_mode: str,
    initial_state: Grouped | None = None,
    event_time_column: str = "",
    *,
    uid: str | None = None,
    flavour: Flavour = "row",
    partitions: int | None = None,
    state_from: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """``GroupedData.transformWithState`` with state that Clonos keeps, and recorded services.

    The processor is Spark's ``StatefulProcessor``, unchanged, or a `BatchProcessor`. A task asks
    once for the state of all keys that it touches, works on that, and writes what it changed once.
    The causal services work inside the processor and are recorded: state and what was answered
    never disagree.

    Parameters
    ----------
    grouped : pyspark.sql.GroupedData, or tuple of DataFrame and keys
        ``df.groupBy("id")``, or ``(df, ["id"])``. Rows with equal keys come together as in
        `exchange`.
    processor : StatefulProcessor or BatchProcessor
        As Spark's operator takes it; ``init`` is run here first, on a copy, to learn its variables.
        Or one that handles all keys of a task at once, which is the fastest.
    schema : StructType or str
        Schema of the output.
    output_mode : str
        ``"append"``, ``"update"`` or ``"complete"``: as in Spark, what is emitted is the same.
    time_mode : str
        ``"none"``, ``"processingTime"`` or ``"eventTime"``: what timers go by. On a stream, one
        that is due begins a batch, whether there are rows. TTL is in processing time.
    initial_state : pyspark.sql.GroupedData, or tuple of DataFrame and keys, optional
        Rows given to ``handleInitialState`` before those of the data, where there is no state yet:
        in a stream, in its first batch. Grouped by columns of the same types, and no stream.
    event_time_column : str, optional
        The column of the output that is its event time from here on.
    uid : str, optional
        Stable name of the operator, by which its state is found again: choose one that survives
        renaming. Default: the name of the processor's class, with its module.
    flavour : {"row", "pandas", "arrow"}
        Whether the processor takes and returns Rows, as in ``transformWithState``, or frames, as in
        ``transformWithStateInPandas``, or is a `BatchProcessor`.
    partitions : int, optional
        Number of tasks; default: ``spark.sql.shuffle.partitions``. Another number at the next start
        finds the same state.
    state_from : path or URL, optional
        A savepoint (`Session.savepoint`), on a file system that driver and executors mount, or in
        an object store, to which credentials are given as `Session.savepoint` says. Where
        no batch with this operator was committed yet, it begins with what the savepoint holds of
        the operator of this `uid`. Once there is state, that is what counts.

    Returns
    -------
    pyspark.sql.DataFrame

    Raises
    ------
    ConfigError
        If there are no keys, a key is of a type that `exchange` refuses, or a stream has no session
        attached to keep its state; if there is no savepoint at `state_from`, or none of this
        `uid` in it.
    CorruptLog
        If the savepoint is damaged, or of a newer version of Clonos.
    Exception
        What ``init`` raises, and what Spark raises of modes that there are not.

    Examples
    --------
    >>> from pyspark.sql import Row
    >>> from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    >>> class Count(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.seen = handle.getValueState("seen", "n long")
    ...
    ...     def handleInputRows(self, key, rows, timer_values):
    ...         count = (self.seen.get() or (0,))[0] + sum(1 for _ in rows)
    ...         self.seen.update((count,))
    ...         yield Row(id=key[0], count=count)
    >>> counts = clonos.transform_with_state(  # doctest: +SKIP
    ...     df.groupBy("id"), Count(), "id string, count long", "update", "none", uid="count"
    ... )
    """
    return stateful(
        *(grouped, processor, schema, output_mode, time_mode, initial_state, event_time_column),
        uid=uid,
        flavour=flavour,
        partitions=partitions,
        state_from=state_from,
    )


def stateful(  # noqa: PLR0917  # the order of Spark's
    grouped: Grouped,
    processor: StatefulProcessor | BatchProcessor,
    schema: StructType | str,
    output_mode: str,
    time_mode: str,
    initial_state: Grouped | None,
    event_time_column: str,
    *,
    uid: str | None = None,
    flavour: Flavour = "row",
    partitions: int | None = None,
    state_from: str | os.PathLike[str] | None = None,
    is_adopted: bool = False,
) -> DataFrame:
    """As `transform_with_state`, or as Spark's own, in what it is to a program, if adopted.

    Then the state of a batch query ends with it, in ``foreachBatch`` too, that of a stream begins
    with its first batch, and whoever mends a processor that has failed goes on with that.
    """
    df, keys = grouping(grouped)
    check_flavour(processor, flavour, initial_state)
    mode = _mode(df, output_mode, time_mode)
    output = _parsed(schema)
    check_stream(df, mode)
    handle = declared(processor, mode, _parsed)
    if state_from is not None and initial_state is not None:
        message = "state begins with initial_state or with state_from, not with both"
        raise ConfigError(message, "CONFIG")
    delay, event_time = _event_time(df)
    count = partitions or int(df.sparkSession.conf.get(SHUFFLE_PARTITIONS) or 1)
    rows, places = _keyed(df, keys)
    columns = len(df.columns)
    if initial_state is not None:
        rows = with_initial(rows, places, initial_state)
    name = f"{type(processor).__module__}.{type(processor).__qualname__}"
    handler: Any
    if isinstance(processor, BatchProcessor):
        handler = processor.handle_batch
    else:
        handler = processor.handleInputRows
    spec = replace(spec_of(handler, uid, name=name), allow_code_change=is_adopted)
    program = Program(
        processor=processor,
        flavour=flavour,
        time_mode=mode,
        declared=handle.asked,
        variables=tuple(variable.name for variable in handle.variables),
        deleted=tuple(handle.deleted),
        keys=tuple(rows.columns.index(place) for place in places),
        key_schema=_key_schema(rows, keys, places),
        columns=columns,
        initial=rows.columns.index(INITIAL) if initial_state is not None else None,
        output=output,
        event_time=event_time if mode is TimeMode.EVENT_TIME else None,
        output_event_time=event_time_column or None,
        conf=session_conf(),
        config=spec.config,
        operator=spec.name,
        partitions=count,
        is_kept=df.isStreaming or not is_adopted,
        is_adopted=is_adopted,
    )
    if state_from is not None:
        program = _started(program, parse_location("state_from", state_from))
    is_classic = not is_client(df.sparkSession)
    stage = StatefulStage(program, df.sparkSession.sparkContext if is_classic else None)
    timers = _timers(df, processor, mode, spec.name)
    exchanged = exchange_with(timers, rows, count, *places)
    result = map_stage(exchanged, stage, output, uid, spec)
    return _tagged(result, event_time_column, delay) if event_time_column else result


def check_flavour(
    processor: StatefulProcessor | BatchProcessor, flavour: Flavour, initial: Grouped | None
) -> None:
    """Refuse a processor of another flavour, and what there is not in its own.

    Raises
    ------
    ConfigError
        That says what to use.
    """
    choice("flavour", flavour, Flavour)
    name = type(processor).__name__
    if isinstance(processor, BatchProcessor) != (flavour == "arrow"):
        message = (
            f"flavour='arrow' is for a clonos.BatchProcessor, which {name} is not"
            if flavour == "arrow"
            else f"{name} is a clonos.BatchProcessor: say flavour='arrow'"
        )
        raise ConfigError(message, "CONFIG")
    has_none = getattr(type(processor), STARTS, None) is getattr(BatchProcessor, STARTS)
    if initial is not None and has_none:
        message = f"{name} takes no initial_state: write its {STARTS}(keys, rows, state)"
        raise ConfigError(message, "CONFIG")


def declared(
    processor: StatefulProcessor | BatchProcessor,
    mode: TimeMode,
    parse: Callable[[StructType | str], StructType],
) -> Handle:
    """Run ``init`` of a copy, and return the handle with what it asked for."""
    from clonos._state.handle import Handle

    handle = Handle(mode, parse)
    if isinstance(processor, BatchProcessor):
        schema = getattr(processor, "state_schema", None)
        if schema is None:
            message = f"{type(processor).__name__} needs a state_schema, such as 'count long'"
            raise ConfigError(message, "CONFIG")
        handle.getValueState(processor.state_name, schema, processor.ttl_ms)
        for list_name, of_list in processor.list_schemas.items():
            handle.getListState(list_name, of_list, processor.ttl_ms)
        _check_columns(processor, handle)
        return handle
    copy = pickle.loads(_pickled(processor))
    copy.init(handle)
    copy.close()
    return handle


def _check_columns(processor: BatchProcessor, handle: Handle) -> None:
    """Refuse lists that have the names of columns: they stand beside them."""
    both = set(handle.asked[processor.state_name].values.names) & set(processor.list_schemas)
    if both:
        name = type(processor).__name__
        message = f"{name} has {sorted(both)} in its state_schema and among its lists"
        raise ConfigError(message, "CONFIG")


def _pickled(what: object) -> bytes:
    from pyspark import cloudpickle

    dumps: Any = cloudpickle.dumps
    return bytes(dumps(what))


def _started(program: Program, savepoint: str) -> Program:
    """Have the operator begin with a savepoint, or refuse one with which it cannot."""
    variables = [program.declared[name].for_core() for name in program.variables]
    operator, keys, deleted = program.operator, program.key_schema, program.deleted
    config = None if program.config is None else _core.SessionConfig.from_bytes(program.config)
    location = _core.Location(savepoint, config)
    mark = _core.check_savepoint(location, operator, keys, variables, deleted)
    return replace(program, state_from=(savepoint, mark))


def check_stream(df: DataFrame, mode: TimeMode) -> None:
    """Refuse a stream whose state nobody would keep, or whose time never passes."""
    if not df.isStreaming:
        return
    from clonos._attached import current_config

    config = current_config()
    if config is None:
        message = "the state of a stream is kept by a session: call clonos.attach(spark) first"
        raise ConfigError(message, "CONFIG")
    if config.guarantee != "exactly_once":
        message = (
            "state is kept with guarantee='exactly_once' only: what a batch that runs again did "
            "before would be done twice"
        )
        raise ConfigError(message, "CONFIG")
    if mode is TimeMode.EVENT_TIME and _event_time(df)[1] is None:
        message = "time_mode='eventTime' needs a watermark: df.withWatermark(column, delay)"
        raise ConfigError(message, "CONFIG")


def _timers(
    df: DataFrame, processor: StatefulProcessor | BatchProcessor, mode: TimeMode, operator: str
) -> DataFrame | None:
    """The stream that has a batch whenever timers are due, if there may be any."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    handler: Any
    default: Any
    if isinstance(processor, BatchProcessor):
        handler, default = processor.handle_timers, BatchProcessor.handle_timers
    else:
        handler, default = processor.handleExpiredTimer, StatefulProcessor.handleExpiredTimer
    is_default = getattr(handler, "__func__", None) is default
    if not df.isStreaming or mode is TimeMode.NONE or is_default:
        return None
    from clonos._sources.timers import HAS_STARTS, read_timers

    if not HAS_STARTS:  # pragma: no cover
        return None
    session = _attached.current()
    # The attached one alone knows the format; a stream may be of another of the application.
    spark = df.sparkSession if session is None else session.spark
    return read_timers(spark, operator, by_watermark=mode is TimeMode.EVENT_TIME)


def _parsed(schema: StructType | str) -> StructType:
    from pyspark.sql.types import StructType, _parse_datatype_string

    if not isinstance(schema, str):
        return schema
    parsed = _parse_datatype_string(schema)
    if not isinstance(parsed, StructType):
        message = f"{schema!r} is no schema of columns: write 'name type, …'"
        raise ConfigError(message, "CONFIG")
    return parsed


def _mode(df: DataFrame, output_mode: str, time_mode: str) -> TimeMode:
    """Time mode by its name; Spark itself refuses names of modes that there are not."""
    session: Any = df.sparkSession
    if is_client(session):
        _check_modes(output_mode, time_mode)
    else:
        jvm = session._jvm
        jvm.org.apache.spark.sql.catalyst.streaming.InternalOutputModes.apply(output_mode)
        jvm.org.apache.spark.sql.catalyst.plans.logical.TimeModes.apply(time_mode)
    return TIME_MODES[time_mode.lower()]


def _check_modes(output_mode: str, time_mode: str) -> None:
    """Refuse what a server would refuse, which is not asked before there is a plan."""
    from pyspark.errors import IllegalArgumentException

    asked = {"output mode": (output_mode, OUTPUT_MODES), "time mode": (time_mode, TIME_MODES)}
    for what, (name, known) in asked.items():
        if name.lower() not in known:
            message = f"Unknown {what} {name}. Accepted are: {', '.join(known)}"
            raise IllegalArgumentException(message)


def _event_time(df: DataFrame) -> tuple[int | None, EventTime | None]:
    """Delay of the watermark and the column that it is of, if there is one."""
    from pyspark.sql.types import StructType

    for place, field in enumerate(df.schema.fields):
        if WATERMARK in field.metadata:
            is_window = isinstance(field.dataType, StructType)
            return int(field.metadata[WATERMARK]), EventTime(place, is_window)
    return None, None


def _keyed(df: DataFrame, keys: list[Key]) -> tuple[DataFrame, list[str]]:
    """The rows with the keys that are computed behind them, and the names of all key columns."""
    computed = {
        f"{_COMPUTED}{at}": key.column for at, key in enumerate(keys) if key.column is not None
    }
    places = [key.name if key.column is None else f"{_COMPUTED}{at}" for at, key in enumerate(keys)]
    return df.withColumns(computed) if computed else df, places


def _key_schema(rows: DataFrame, keys: list[Key], places: list[str]) -> pa.Schema:
    from pyspark.sql.types import StructField, StructType

    of_keys = zip(keys, places, strict=True)
    return arrow_schema(
        StructType([StructField(key.shown, rows.schema[place].dataType) for key, place in of_keys])
    )


def _tagged(df: DataFrame, name: str, delay: int | None) -> DataFrame:
    """Make a column the event time, as ``withWatermark`` did with the input's."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    if delay is None:
        message = (
            "[CANNOT_ASSIGN_EVENT_TIME_COLUMN_WITHOUT_WATERMARK] Watermark needs to be defined to "
            "reassign event time column. Failed to find watermark definition in the streaming "
            "query. SQLSTATE: 42611"
        )
        raise AnalysisException(message)
    if name not in df.columns:
        message = f"event_time_column={name!r} is not one of the columns {df.columns}"
        raise ConfigError(message, "CONFIG")
    tagged = functions.col(quoted(name)).alias(name, metadata={WATERMARK: delay})
    others = [functions.col(quoted(column)) for column in df.columns]
    return df.select(
        *[
            tagged if column == name else other
            for column, other in zip(df.columns, others, strict=True)
        ]
    )
