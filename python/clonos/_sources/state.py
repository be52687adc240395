"""``clonos-state``: keyed state that lies in files, as rows, with the columns of Spark's reader."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from clonos import _core
from clonos._config import parse_location
from clonos._sources.options import check_known, refused, truth, whole
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# The hashes of keys are cut into so many ranges; a task reads some of them.
RANGES = 256
TTL = "ttlExpirationMs"
OPTIONS = (
    "path",
    "query",
    "operator",
    "stateVarName",
    "readRegisteredTimers",
    "flattenCollectionTypes",
    "batchId",
    "numPartitions",
)


@dataclass(frozen=True)
class StateOptions:
    """Which state, and what of it: `variable` is ``None`` for timers.

    `session` is that whose credentials an object store is given, as bytes; it is shown nowhere.
    """

    path: str
    query: str | None
    operator: str | None
    version: int | None
    variable: str | None
    flatten: bool
    partitions: int
    session: bytes | None = field(default=None, repr=False)

    @classmethod
    def read(cls, options: Mapping[str, str], session: bytes | None = None) -> StateOptions:
        """Check the options of the source."""
        check_known(StateSource.name(), options, OPTIONS, ())
        path = options.get("path")
        if not path:
            message = (
                "clonos-state needs a path: of a savepoint, or a checkpoint_dir; "
                'spark.read.format("clonos-state").option("stateVarName", …).load(path)'
            )
            raise ConfigError(message, "CONFIG")
        variable: str | None = options.get("stateVarName", "")
        if truth(options, "readRegisteredTimers", default=False):
            if variable:
                message = "clonos-state reads stateVarName or readRegisteredTimers, not both"
                raise ConfigError(message, "CONFIG")
            variable = None
        batch = options.get("batchId")
        if batch is not None and not batch.strip().isdecimal():
            raise refused("batchId", batch, "the number of a batch")
        return cls(
            path=parse_location("path", path),
            query=options.get("query"),
            operator=options.get("operator"),
            version=None if batch is None else int(batch),
            variable=variable,
            flatten=truth(options, "flattenCollectionTypes", default=True),
            partitions=min(whole(options, "numPartitions", os.cpu_count() or 1), RANGES),
            session=session,
        )

    @property
    def location(self) -> _core.Location:
        """What `path` names: nothing is opened yet."""
        session = None if self.session is None else _core.SessionConfig.from_bytes(self.session)
        return _core.Location(self.path, session)


class StateRanges(InputPartition):
    """Keys whose hashes are in some ranges."""

    def __init__(self, number: int, first: int, last: int) -> None:
        super().__init__((first, last))
        self.number = number
        self.first = first
        self.last = last

    def __repr__(self) -> str:
        return f"StateRanges({self.first}, {self.last})"


class StateSource(DataSource):
    """Keyed state as rows: ``spark.read.format("clonos-state").load(path)``.

    The path is that of a savepoint (`Session.savepoint`) or of a ``checkpoint_dir``: a folder, or
    the URL of an object store, which each task reads. A store of the kind that the session's
    ``checkpoint_dir`` is in is told its ``storage_options``; another one, and any where no session
    is attached, finds its credentials in the environment. They are no options of the source, as
    those may be shown in plans. The columns
    are those of Spark's ``statestore`` reader: ``key``, then ``value``, or ``list_element``, or
    ``user_map_key`` and ``user_map_value``, or ``expiration_timestamp_ms`` of timers, and
    ``partition_id``: the part of the keys that one task reads. Values with a TTL are structs of
    ``value`` and ``ttlExpirationMs``.

    ========================== ========= ===========================================================
    option                     default   meaning
    ========================== ========= ===========================================================
    ``path``                             a savepoint, or a ``checkpoint_dir``
    ``operator``               the only  ``uid`` of the operator
    ``query``                  the only  id of the query
    ``stateVarName``                     the state variable
    ``readRegisteredTimers``   false     the timers instead of a variable
    ``flattenCollectionTypes`` true      a row for each element of a list or map; if false, one for
                                         each key, with ``list_value`` or ``map_value``
    ``batchId``                newest    the batch that left it, of those that ``checkpoint_dir``
                                         keeps. The newest may be one that Spark has not committed
                                         yet
    ``numPartitions``          see right tasks; unless given, one for each processor of the driver
    ========================== ========= ===========================================================

    `clonos.attach` registers it; without a session, ``spark.dataSource.register(StateSource)``.
    """

    # The session whose credentials it reads with, as bytes.
    session: ClassVar[bytes | None] = None

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "clonos-state"

    def schema(self) -> StructType:
        """Return the columns, which the state itself tells."""
        from clonos._arrow_types import spark_schema

        return spark_schema(_described(self._options())[1])

    def reader(self, schema: StructType) -> StateReader:  # noqa: ARG002  # it tells its own
        """Return what Spark reads through."""
        options = self._options()
        version, columns, kind, ttl = _described(options)
        return StateReader(options, version, columns, kind, ttl=ttl)

    def _options(self) -> StateOptions:
        from pyspark.sql.datasource import CaseInsensitiveDict

        return StateOptions.read(CaseInsensitiveDict(self.options), self.session)


class StateReader(DataSourceReader):
    """Reads one version of a state; which one was found when the query was planned."""

    def __init__(
        self, options: StateOptions, version: int, schema: pa.Schema, kind: str | None, *, ttl: bool
    ) -> None:
        self._options = options
        self._version = version
        self._schema = schema
        self._kind = kind
        self._ttl = ttl

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the hashes of keys into pieces."""
        count = self._options.partitions
        cuts = [RANGES * number // count for number in range(count + 1)]
        return [StateRanges(n, cuts[n], cuts[n + 1] - 1) for n in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read some ranges: runs on an executor."""
        if not isinstance(partition, StateRanges):
            raise TypeError(f"a StateRanges is read, not {partition!r}")
        options = self._options
        rows = _core.StateRows.open(
            options.location,
            query=options.query,
            operator=options.operator,
            version=self._version,
            variable=options.variable,
            first=partition.first,
            last=partition.last,
        )
        while (chunk := rows.next()) is not None:
            columns = self._columns(*chunk)
            count = len(columns[0])
            columns.append(pa.repeat(pa.scalar(partition.number, pa.int32()), count))
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _columns(
        self, keys: Any, offsets: Any, user_keys: Any, values: Any, times: Any
    ) -> list[Any]:
        """Columns of some keys, in the order of the schema."""
        counts = np.diff(np.asarray(offsets))
        each = keys.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
        if values is None:
            return [each, times]
        if self._ttl:
            # What was written before the variable had a TTL has none.
            expires = pa.array(np.asarray(times), mask=np.asarray(times) == 0)
            values = pa.StructArray.from_arrays([values, expires], names=["value", TTL])
        if self._kind == "value":
            return [each, values]
        if self._kind == "list":
            if self._options.flatten:
                return [each, values]
            return [keys, pa.ListArray.from_arrays(offsets, values)]
        if self._options.flatten:
            return [each, user_keys, values]
        return [keys, pa.MapArray.from_arrays(offsets, user_keys, values)]


def source_of(config: _core.SessionConfig) -> type[StateSource]:
    """Return the data source, which reads with a session's credentials if it has a store's.

    It is a new class then, so that it travels to Spark's planner by value.
    """
    if config.checkpoint_dir is None or "://" not in config.checkpoint_dir:
        return StateSource
    members = {"session": config.to_bytes(), "__doc__": StateSource.__doc__}
    return type(StateSource.__name__, (StateSource,), members)


def _described(options: StateOptions) -> tuple[int, pa.Schema, str | None, bool]:
    """Version that is read, its columns, kind of the variable, whether it has a TTL."""
    version, key, user_key, value, kind, ttl = _core.stored_schema(
        options.location, options.query, options.operator, options.version, options.variable
    )
    columns = [("key", _struct(key))]
    if value is None:
        columns.append(("expiration_timestamp_ms", pa.int64()))
    else:
        held = _struct(value)
        if ttl:
            held = pa.struct([("value", held), (TTL, pa.int64())])
        users = pa.struct([]) if user_key is None else _struct(user_key)
        columns += {
            ("value", True): [("value", held)],
            ("value", False): [("value", held)],
            ("list", True): [("list_element", held)],
            ("list", False): [("list_value", pa.list_(held))],
            ("map", True): [("user_map_key", users), ("user_map_value", held)],
            ("map", False): [("map_value", pa.map_(users, held))],
        }[str(kind), options.flatten]
    columns.append(("partition_id", pa.int32()))
    return version, pa.schema(columns), kind, ttl


def _struct(fields: Any) -> pa.StructType:
    """Struct with the fields of what the core gives: a schema by Arrow's C interface."""
    return pa.struct(list(pa.schema(fields)))


__all__ = ["StateReader", "StateSource", "source_of"]
