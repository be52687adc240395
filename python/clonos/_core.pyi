"""The Rust core, as Python sees it. Private: use the names that ``clonos`` exports.

Every method that waits does so without the interpreter lock. Errors are those of ``clonos.errors``.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, final

import pyarrow as pa

@final
class SessionConfig:
    """Settings of a session, checked; what a task needs to reach its agents."""

    def __new__(
        cls,
        *,
        app_id: str,
        secret: bytes,
        driver_addr: str,
        driver_socket: str,
        local: bool,
        guarantee: str,
        sharing_depth: int,
        memory_bytes: int,
        disk_bytes: int,
        spill_policy: str,
        clock_resolution_ns: int,
        compress_frames: bool,
        spill_dir: str | None,
        checkpoint_dir: str | None,
        agent_scope: str,
        on_lost: str,
        on_ambiguous: str,
        io_timeout_ms: int,
        network_timeout_ms: int = 120_000,
        standbys: int = 1,
        state_epochs: int = 100,
        agent_ports: tuple[int, int] = (0, 0),
        encrypt: bool = False,
        encrypt_spill: bool = False,
        storage_options: dict[str, str] = ...,
        flush_interval_ms: int = 0,
    ) -> SessionConfig: ...
    @staticmethod
    def from_bytes(data: bytes) -> SessionConfig: ...
    def to_bytes(self) -> bytes:
        """Everything, the secret included: keep it out of logs."""
    def with_driver_addr(self, addr: str) -> SessionConfig: ...
    def with_host_label(self, label: str) -> SessionConfig: ...
    @property
    def app_id(self) -> str: ...
    @property
    def local(self) -> bool: ...
    @property
    def driver_addr(self) -> str: ...
    @property
    def driver_socket(self) -> str: ...
    @property
    def guarantee(self) -> str: ...
    @property
    def sharing_depth(self) -> int: ...
    @property
    def standbys(self) -> int: ...
    @property
    def spill_policy(self) -> str: ...
    @property
    def agent_scope(self) -> str: ...
    @property
    def on_lost(self) -> str: ...
    @property
    def checkpoint_dir(self) -> str | None: ...
    @property
    def agent_ports(self) -> tuple[int, int]: ...
    @property
    def encrypt(self) -> bool: ...
    @property
    def encrypt_spill(self) -> bool: ...

@final
class Client:
    """A worker's connection to its agent; of use only in the process that made it."""

    @staticmethod
    def connect(config: SessionConfig, socket: str) -> Client: ...
    def permits(self, name: str, interval_ns: int, count: int) -> int:
        """Reserve permits of the application's rate limit `name`; nanoseconds until the first."""
    def timer_due(
        self, reader: str, operator: str, by_watermark: bool, until_ms: int | None
    ) -> tuple[int, int | None] | None:
        """When the first timer is due that the next batch is to find; the version that has it."""
    def is_usable(self) -> bool:
        """Whether no error has been seen on the connection."""

@final
class Plan:
    """Which rows of one batch have recorded values."""

    @property
    def rows(self) -> int: ...
    @property
    def live_count(self) -> int:
        """Rows without a recorded value."""
    @property
    def live(self) -> pa.Array | None:
        """Positions of the live rows (uint32), or ``None`` if all rows are live."""

@final
class ResultTask:
    """One attempt of a task under ``record="result"``."""

    @staticmethod
    def open(
        client: Client,
        config: SessionConfig,
        *,
        query: str,
        epoch: int | str,
        operator: str,
        partition: int,
        app: int,
        stage: int,
        attempt: int,
        worker: int,
        of_rdd: tuple[int, int] | None,
        token: int,
        named: bool,
        execution: tuple[int, int] | None,
        code: int,
        python: str,
        label: str,
        keyed: bool,
        allow_code_change: bool,
        count_occurrences: bool,
    ) -> ResultTask: ...
    @property
    def lost(self) -> bool:
        """Whether a published log of this task can be read nowhere."""
    @property
    def of_others(self) -> bool:
        """Whether another stage, of an earlier job, published some of it."""
    @property
    def relaid(self) -> bool:
        """Whether the epoch was recorded with another number of partitions."""
    def offer(self, columns: Sequence[pa.Array], marks: pa.Array | None = None) -> Plan:
        """Fingerprint the rows of a batch and match them with the log; `marks` are int64."""
    def complete(self, plan: Plan, live: pa.Array | None) -> pa.Array:
        """Record the values of the live rows; all values of the batch, in its order."""
    def abandon(self, plan: Plan) -> None:
        """Give back a plan whose rows were not decided, as the function raised."""
    def keep(self, plan: Plan, places: Sequence[int], values: pa.Array) -> int:
        """Record and send values of some live rows before all are there; from any thread."""
    def key(self, plan: Plan, live_row: int | None, ordinal: int) -> str:
        """Idempotency key of call number `ordinal` for a live row, or for all: 32 hex digits."""
    def publish(self) -> int:
        """Send what was recorded since the last time; does not wait. A mark for `settle`."""
    def settle(self, mark: int | None = None) -> None:
        """Wait until all that was sent up to `mark` is stable; ``None``: all that was sent."""
    def finish(self) -> dict[str, int]:
        """End of input: check that everything recorded came back, and close the log."""
    def close(self) -> None:
        """Give the log back, finished or not. Never raises."""

@final
class ValueTask:
    """One attempt of a task whose function has one answer per distinct argument."""

    @staticmethod
    def open(client: Client, **arguments: Any) -> ValueTask:
        """Begin an attempt; nothing is asked yet."""
    def offer(self, columns: Sequence[pa.Array]) -> None:
        """Fingerprint the rows of a batch, and find those whose answer is not known here."""
    def ask(self, duties_max: int) -> pa.Array | None:
        """Rows to call the function for, none while others are; ``None`` if all are answered."""
    def ask_ahead(self, duties_max: int) -> None:
        """Send what the next `ask` waits for. Until then `lapse` may give its duties up."""
    def lapse(self, seconds: float) -> bool:
        """Give up what was asked ahead so long ago and is not begun, for others; whether it was."""
    def answer(self, values: pa.Array, places: Sequence[int] | None = None) -> None:
        """Record values of the rows last given, or of some; returns when they are stable."""
    def answer_ahead(self, values: pa.Array) -> None:
        """Send values of the rows last given, and go on, where nothing is waited for meanwhile.

        That is so if they are all that the batch lacks, or the rest of it is asked about. Its
        values may be used when `settle` has said so. Else as `answer`.
        """
    def is_settled(self) -> bool:
        """Whether nothing was sent ahead that `settle` is to wait for."""
    def settle(self) -> bool:
        """Wait for what was sent ahead; ``False`` if others had answered, and their answers count.

        Then its batch and those offered since are to be offered again.
        """
    def complete(self) -> pa.Array:
        """All values of the batch, in its order."""
    def key(self, live_row: int | None, ordinal: int) -> str:
        """Idempotency key of call number `ordinal` for a live row, or for all: 32 hex digits."""
    def close(self) -> None:
        """End the attempt: what it was to answer is for others."""

class ServiceTask:
    """One attempt of a task under ``record="services"``, or of an operator on a partition."""

    @staticmethod
    def open(
        client: Client,
        config: SessionConfig,
        *,
        query: str,
        epoch: int | str,
        operator: str,
        partition: int,
        app: int,
        stage: int,
        attempt: int,
        worker: int,
        of_rdd: tuple[int, int] | None,
        token: int,
        named: bool,
        execution: tuple[int, int] | None,
        code: int,
        python: str,
        label: str,
        keyed: bool,
        allow_code_change: bool,
        count_occurrences: bool,
    ) -> ServiceTask: ...
    @property
    def lost(self) -> bool:
        """Whether a published log of this task can be read nowhere."""
    @property
    def tasks(self) -> int | None:
        """How many tasks Spark's stage has, or the side of a union in it, if that is known."""
    @property
    def partition(self) -> int:
        """Which of these it is; of a side of a union, where that is known, as of its tasks."""
    @property
    def part(self) -> int:
        """How many partitions of the operator this attempt of Spark's task began before."""
    @property
    def of_others(self) -> bool:
        """Whether another stage, of an earlier job, published some of it."""
    def time_ns(self) -> int:
        """The clock, or its recorded reading; nanoseconds since 1970."""
    def random(self) -> float:
        """Next float in [0, 1) of the task's recorded seed."""
    def getrandbits(self, bits: int) -> int:
        """Integer of `bits` random bits of the task's recorded seed."""
    def call_begin(self, name: str) -> tuple[bool, bytes] | None:
        """Recorded outcome of the service call `name` (did it return, pickle), or ``None``."""
    def call_record(self, name: str, ok: bool, value: bytes) -> None:
        """Record the outcome of a call that `call_begin` had nothing for."""
    def begin_batch(self, columns: Sequence[pa.Array]) -> None:
        """Fingerprint the rows of a batch, whose determinants are kept by row."""
    def begin_row(self, row: int) -> None:
        """What follows belongs to this row of the batch."""
    def end_row(self) -> None:
        """Check that the last row of a batch asked for all that is recorded of it."""
    def input(self, columns: Sequence[pa.Array]) -> None:
        """Note that one batch of the partition was taken."""
    def input_bytes(self, rows: int, data: bytes) -> None:
        """Note that elements with this serialised form were taken."""
    def idempotency_key(self) -> str:
        """Key of the next call: 32 hex digits."""
    def keys_again(self) -> None:
        """The row or batch is worked on once more: its calls have the keys that they had."""
    def publish(self) -> int:
        """Send what was recorded since the last time; does not wait. A mark for `settle`."""
    def publish_answers(self) -> int:
        """As `publish`, without failed calls that nothing depends on yet; from any thread."""
    def settle(self, mark: int | None = None) -> None:
        """Wait until all that was sent up to `mark` is stable; ``None``: all that was sent."""
    def finish(self) -> dict[str, int]:
        """End of input: close the log."""
    def close(self) -> None:
        """Give the log back, finished or not. Never raises."""

@final
class Stage:
    """The exchanges at both ends of one attempt: frames in, frames out."""

    def __new__(
        cls,
        task: ServiceTask | None,
        config: SessionConfig | None,
        *,
        query: str,
        epoch: int | str,
        operator: str,
        partition: int,
        sender: tuple[str, int] | None,
        scatters: tuple[list[int], int] | None,
    ) -> Stage:
        """`sender`: operator that sends to it, and its use; `scatters`: key columns, channels."""
    @property
    def has_frames(self) -> bool:
        """Whether all frames of an earlier attempt can be read."""
    def offer(self, frames: pa.Array) -> None:
        """Frames have come: a binary array without nulls."""
    def take(self) -> list[pa.RecordBatch] | None:
        """The next frame's rows; ``None`` until more frames come."""
    def end_input(self) -> None:
        """The input is at its end; raises `InputCutShort` if it was cut short."""
    def push(self, batch: pa.RecordBatch) -> bool:
        """Take rows to be sent; whether a round is full and `cut` due."""
    def cut(self, last: bool) -> pa.RecordBatch | None:
        """Frames of a round, as ``(pid, frame)``; the last has one for each channel."""
    def publish_answers(self) -> None:
        """The function has failed: send what it was answered until then; does not wait."""
    def resend(self, start: int) -> tuple[pa.RecordBatch, int] | None:
        """Frames of an earlier attempt from byte `start` on, and where the next ones start."""

@final
class StateRows:
    """Rows of a state that lies in files: of a variable, or the timers without one."""

    @staticmethod
    def open(
        location: Location,
        *,
        query: str | None,
        operator: str | None,
        version: int | None,
        variable: str | None,
        first: int,
        last: int,
    ) -> StateRows:
        """Begin to read the ranges from `first` to `last`, of 256."""
    def next(
        self,
    ) -> (
        tuple[
            pa.StructArray,
            pa.Int32Array,
            pa.StructArray | None,
            pa.StructArray | None,
            pa.Int64Array,
        ]
        | None
    ):
        """Keys, where the rows of each begin, user keys, values, and when each is over or due."""

@final
class LocalState:
    """Keyed state that this process keeps from task to task, with a clock that is set."""

    def __new__(cls, now_ms: int = 0, watermark_ms: int = -1, late_ms: int = -1) -> Self: ...
    def set_clock(self, now_ms: int, watermark_ms: int = -1, late_ms: int = -1) -> None:
        """What tasks that are opened from now on are told."""
    def commit(self, query: str, operator: str, epoch: int) -> None:
        """Make what the tasks of an epoch wrote the version that later ones read."""
    def version(self, query: str, operator: str) -> int | None:
        """Epoch that was committed last."""

@final
class GatheredRows:
    """Rows of a task until all of them are there."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows behind those that are there."""
    def take(self) -> list[pa.RecordBatch]:
        """All rows of the keys that come next, by their hash, as they came; none at the end."""

class StateTask:
    """What one task reads of its operator's keyed state, and what it changes.

    Keys have numbers: their places among all that the task has met.
    """

    @staticmethod
    def open(
        task: ServiceTask | None,
        *,
        query: str,
        operator: str,
        epoch: int | str,
        partition: int,
        partitions: int,
        keys: pa.Schema,
        variables: Sequence[tuple[str, str, pa.Schema | None, pa.Schema, int]],
        deleted: Sequence[str] = (),
        local: LocalState | None = None,
        state_from: tuple[Location, int] | None = None,
        part_bytes: int | None = None,
    ) -> StateTask:
        """Begin; `variables` are name, kind (value, list, map), user key, value, TTL in ms.

        What was kept under `deleted` names is gone, before those that are declared.
        Without a task, and in a batch query, the state is empty and nothing is kept, but for
        `local`. Where nothing was committed, it begins with the savepoint `state_from`, whose
        mark `check_savepoint` told. About `part_bytes` of each list and map are loaded with
        their keys; ``None``: all.
        """
    @property
    def version(self) -> int | None:
        """Epoch whose state is read; ``None`` if there was none."""
    @property
    def now_ms(self) -> int:
        """Processing time, in milliseconds since 1970: the batch's."""
    @property
    def watermark_ms(self) -> int:
        """The watermark; -1 without one."""
    @property
    def late_ms(self) -> int:
        """The watermark below which rows are late: that of the batch before; -1 without one."""
    def group(
        self, batches: Sequence[pa.RecordBatch], keys: Sequence[int]
    ) -> tuple[pa.RecordBatch, list[int], pa.RecordBatch]:
        """All rows by key; where each key's rows start, and the last one's end; the keys.

        Rows of a key are in the order in which they came. Of the first call, keys are numbered
        in this order; else see `numbers`.
        """
    def gathering(
        self,
        keys: Sequence[int],
        bytes_max: int | None = None,
        config: SessionConfig | None = None,
    ) -> GatheredRows:
        """Rows that are to be grouped by these columns, more than `bytes_max` of them in a file."""
    def numbers(self) -> pa.Array:
        """Number of each key that `group` gave last (int32)."""
    def load(self) -> None:
        """Read what there is of all keys that were not loaded, in one go."""
    def due(self, until_ms: int) -> tuple[pa.Array, pa.Array]:
        """Key numbers (int32) and expiries (int64) of stored timers that are due, by expiry.

        Keys that are new get numbers and are loaded. What was written since does not count.
        """
    def keys(self) -> pa.RecordBatch:
        """All keys, by number."""
    def values(
        self, variable: int, first: int = 0
    ) -> tuple[pa.Array, pa.Array | None, pa.StructArray]:
        """Stored entries of loaded keys from `first` on: key numbers, user keys, values."""
    def cut(self, variable: int, first: int = 0) -> list[int]:
        """Numbers of keys, from `first` on, of whose list or map not all is loaded."""
    def piece(
        self, variable: int, key: int, begins: bytes | None = None
    ) -> tuple[pa.StructArray | None, pa.StructArray, bytes | None]:
        """Some of what was not loaded: user keys, values, and where the next piece begins.

        The first begins where what was loaded ends. About a mebibyte, one entry at least.
        """
    def lookup(
        self, variable: int, key: int, user_key: pa.StructArray, begins: bytes | None = None
    ) -> pa.StructArray | None:
        """Value of a user key (one row) in a map, behind what is loaded or from `begins` on."""
    def timers(self, first: int = 0) -> tuple[pa.Array, pa.Array]:
        """Stored timers of the loaded keys from number `first` on: key numbers, expiries."""
    def write(
        self,
        variable: int,
        keys: pa.Array,
        ops: pa.Array,
        user_keys: pa.Array | None = None,
        values: pa.Array | None = None,
    ) -> None:
        """Note what was done, in order: 0 put (to a list: append), 1 delete, 2 clear.

        `values` has a row (struct) for each put, `user_keys` for each put and delete of a map.
        """
    def write_timers(self, keys: pa.Array, ops: pa.Array, expiries: pa.Array) -> None:
        """Note timers that were registered (0) and deleted (1), in order."""
    def commit(self) -> int:
        """Have all that was written held as one; its fingerprint. Once, at the end."""

def plain_array(values: list[Any], kind: str) -> pa.Array | None:
    """Array of values that are null or just of the type that `kind`, Arrow's name of a type, has.

    ``None`` if one is not or does not fit; then `pyarrow.array` says why.
    """

@final
class Outputs:
    """Hands on what an iterator yields, without a line of its own in tracebacks.

    An exception goes through `cleaned` first.
    """

    def __new__(
        cls, inner: Iterator[Any], cleaned: Callable[[BaseException], BaseException]
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...

def partition_ids(keys: Sequence[pa.Array], partitions: int) -> bytes:
    """Partition of each row by its keys, as little-endian 32-bit numbers."""

@final
class Agent:
    """The driver's agent, with the registry."""

    @staticmethod
    def start(
        config: SessionConfig,
        host: str,
        port: int,
        stages: Callable[[int, int | None, bool], tuple[int, bool, bool] | None],
        was_lost: Callable[[int, int], bool],
        plan_uses: Callable[
            [int, int], list[tuple[str, int, str, int, bool, int, int, int, int, int]] | None
        ],
        borders: Callable[
            [int, int, int | None, int | None, int], tuple[int, tuple[int, int] | None] | None
        ],
        clocks: Callable[[str, int], tuple[int, int, int]],
        next_batches: Callable[[str], tuple[str, int, int] | None],
    ) -> Agent: ...
    def refuse_query(self, query: str, setting: str, reason: str) -> None:
        """Open no task of a query any more, until it begins anew."""
    def executors_are(self, executors: set[str]) -> None:
        """Spark has these executors, and does not let them go."""
    def rdd_is_made(
        self,
        query: str,
        epoch: int | str,
        stamp: int,
        execution: int | None,
        operator: str,
        code: int,
        python: str,
        token: int,
        named: bool,
    ) -> None: ...
    def begin_run(self, query: str, epoch: int | str | None = None, stamp: int = 0) -> None:
        """The program begins an epoch, or all those of a query, anew."""
    def end_run(self, query: str, epoch: int | str) -> None:
        """End the run of an epoch that was begun with a stamp: its work records nothing more."""
    @property
    def addr(self) -> str:
        """``host:port`` where other agents reach it."""
    def commit_epoch(self, query: str, epoch: int | str) -> None:
        """Drop the logs of an epoch everywhere."""
    def check_epoch(self, query: str, epoch: int | str) -> None:
        """Raise `InconsistentEpoch` unless what the epoch's tasks took in belongs together."""
    def savepoint(self, query: str, location: Location) -> str:
        """Write all keyed states of a query where nothing is; what is in it, as JSON."""
    def live_epochs(self) -> list[tuple[str, int | str]]:
        """Epochs of which some log is held."""
    def stats(self) -> str:
        """What all agents hold, as JSON."""
    @staticmethod
    def take_traces() -> tuple[list[tuple[bool, str]], int]:
        """Warnings since the last call, with whether they are errors; how many were dropped."""
    def stop(self) -> None: ...

@final
class SourceReceiver:
    """The receiver's side of a source's log: takes in rows and serves those who read them."""

    @staticmethod
    def start(
        *,
        folder: str,
        log: Location | None = None,
        name: str = "a receiver",
        reader: str = "",
        after: int | None = None,
        secret: bytes,
        host: str,
        ports: Sequence[int],
        memory: int,
        disk: int,
        eager: bool,
        encrypt: bool,
    ) -> SourceReceiver:
        """Take the log at `log` for `owner`, and listen on the first free one of `ports`.

        Without `log`, it lies in ``log`` in `folder`, which has what goes with it on this machine.
        `reader` stands for whoever starts it. With `after`, the incarnation of the receiver that it
        stands in for: `SourceInUse` if another reader's has taken the log since.
        """
    @property
    def addr(self) -> str:
        """``ip:port`` where readers reach it."""
    @property
    def incarnation(self) -> int:
        """Which receiver of the log it is; one that takes it later has a higher number."""
    @property
    def taken(self) -> int:
        """Items of the sender that are safe."""
    @property
    def stopping(self) -> bool: ...
    def append(self, rows: pa.RecordBatch, taken: int) -> int:
        """Position after the rows; waits while the log is full."""
    def is_full(self, size: int) -> bool:
        """Whether `append` would wait."""
    def wait(self, position: int) -> None:
        """Wait until the rows before `position` are safe."""
    def receive_socket(
        self,
        *,
        addr: str,
        line_max: int,
        repair: bool,
        keep_malformed: bool,
        acknowledge: bool,
        back_off_max: float,
    ) -> None:
        """Receive lines until stopped."""
    def receive_http(
        self,
        *,
        addr: str,
        path: str,
        body_max: int,
        repair: bool,
        keep_malformed: bool,
        token: str | None,
    ) -> None:
        """Take posted events until stopped."""
    def is_idle(self, linger: float) -> bool:
        """Whether nobody has read for `linger` seconds."""
    def fail(self) -> None:
        """Raise what keeps the log from taking in anything, if something does."""
    def stop(self) -> None: ...
    def stats(self) -> str:
        """What was received, as JSON."""

@final
class SourceClient:
    """A reader's side of a source's log."""

    @staticmethod
    def connect(addr: str, secret: bytes, encrypt: bool) -> SourceClient:
        """`encrypt` must be as the receiver was started; `AuthRefused` says so."""
    def claim(self, owner: str, before: int | None = None) -> int:
        """Become the reader; the receiver's incarnation. `before` is that of the one before.

        `SourceInUse` if there is another reader, or the receiver that it had has lost the log.
        """
    def bounds(self) -> tuple[int, int]:
        """Positions of the first row and after the last."""
    def read(self, start: int, end: int) -> tuple[list[tuple[pa.Array, int]], int]:
        """Rows as struct arrays with their time of receipt, and where the next ones begin."""
    def commit(self, position: int) -> None: ...
    def stats(self) -> str:
        """What was received, as JSON."""
    def release(self) -> None: ...

def ensure_agent(
    config: SessionConfig, folder: str, spawn: Callable[[], Callable[[], bool]]
) -> str:
    """Socket of the agent in `folder`; calls `spawn` if none answers, under a file lock.

    `spawn` returns what tells whether what it has started is over.
    """

def run_executor_agent(config: SessionConfig, watch_pid: int, folder: str, executor: str) -> None:
    """Serve until the process `watch_pid` (0: none) or the application is gone.

    `executor` is Spark's name of the executor that it is; empty if it is none.
    """

def cluster_stats(config: SessionConfig) -> str:
    """What the agents of a running session hold, as JSON; for the command line."""

def try_checkpoint(
    checkpoint_dir: str, options: dict[str, str], patience_s: float, encrypt: bool = ...
) -> float:
    """Try what ``checkpoint_dir`` would name; seconds that an object's put took, 0 for a folder."""

def bytes_fingerprint(data: bytes) -> int:
    """64-bit fingerprint of bytes."""

def row_fingerprints(columns: Sequence[pa.Array]) -> pa.Array:
    """64-bit fingerprint of each row over all columns (uint64)."""

def memory_within(addresses: int, memory: int) -> int: ...
def build_profile() -> str:
    """``"release"`` or ``"debug"``."""

@final
class Location:
    """A folder, or a prefix of an object store; nothing is opened by naming it.

    An object store is told what `options` say, or the ``storage_options`` of a `session` whose
    ``checkpoint_dir`` is in a store of the same kind. ``repr`` shows none of them. If the session
    encrypts, or with `encrypt`, a store on another machine is not reached in clear.
    """

    def __init__(
        self,
        path: str,
        session: SessionConfig | None = ...,
        options: dict[str, str] = ...,
        encrypt: bool = ...,
    ) -> None: ...

@final
class Epochs:
    """The epochs of a checkpoint that were not committed."""

    @staticmethod
    def open(location: Location) -> Epochs:
        """`ConfigError` for a folder that is not there."""
    def list(self) -> str:
        """All of them as JSON, those that were written longest ago first."""
    def drop_epoch(self, folder: str) -> None:
        """Remove one, by its folder: its claims first."""

def inspect(location: Location) -> str:
    """What is in segments, savepoints and keyed state there and below: JSON; reads all of it."""

def check_savepoint(
    location: Location,
    uid: str,
    keys: pa.Schema,
    variables: Sequence[tuple[str, str, pa.Schema | None, pa.Schema, int]],
    deleted: Sequence[str],
) -> int:
    """Raise unless an operator can begin with what a savepoint holds of it; return its mark."""

def stored_schema(
    location: Location,
    query: str | None = None,
    operator: str | None = None,
    version: int | None = None,
    variable: str | None = None,
) -> tuple[int, pa.Schema, pa.Schema | None, pa.Schema | None, str | None, bool]:
    """Version; schemas of key, user key and value; kind; whether values have a TTL."""
