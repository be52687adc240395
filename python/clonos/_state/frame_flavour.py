"""Processors of pandas frames: ``transformWithStateInPandas``.

Spark takes its frames apart into tuples and makes others of these, one for each chunk of a key: so
numbers become ``int64`` and ``float64``, and the type of a column depends on the rows of one key.
Here a window of many keys is converted at once, and cut.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructType,
)

from clonos._arrow_types import arrow_schema
from clonos._state.flavour import OUTPUT_ROWS, rows_per_chunk
from clonos._worker.pandas_codec import PandasCodec, series_of

if TYPE_CHECKING:
    import pandas as pd

    from clonos._worker.task_conf import TaskConf

_NOT_A_FRAME = (
    "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame when the "
    "specified return type is StructType."
)


class FrameFlavour:
    """Frames in, frames out.

    Parameters
    ----------
    output : StructType
        Schema of what the processor returns.
    conf : TaskConf
        Spark's settings.
    """

    def __init__(self, output: StructType, conf: TaskConf) -> None:
        self._conf = conf
        self._outputs = FrameOutputs(output, conf)

    def keys(self, keys: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return the keys as a processor is given them with their rows."""
        columns = zip(keys.columns, keys.schema.names, strict=True)
        return list(
            zip(*(_key_values(column, name, self._conf) for column, name in columns), strict=True)
        )

    def chunks(self, rows: pa.RecordBatch) -> FrameChunks:
        """Return what makes frames of these rows."""
        return FrameChunks(rows, self._conf)

    def take(self, outputs: Iterable[Any]) -> bool:
        """Take all frames of one key; whether it is time to hand them on."""
        for output in outputs:
            self._outputs.add(output)
        return self._outputs.rows >= OUTPUT_ROWS

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Hand on what was taken."""
        yield from self._outputs.batches()


def _key_values(column: pa.Array, name: str, conf: TaskConf) -> list[Any]:
    """Values of a key column, each as if it were alone: a null makes no floats of the others."""
    if not column.null_count:
        return list(rebuilt(series_of(column, name, conf)))
    present = iter(rebuilt(series_of(column.drop_null(), name, conf)))
    missing = next(
        iter(rebuilt(series_of(column.filter(column.is_null()).slice(0, 1), name, conf)))
    )
    return [next(present) if there else missing for there in column.is_valid().to_pylist()]


def rebuilt(series: pd.Series) -> pd.Series:
    """What becomes of a column whose values are taken apart and put together again."""
    import pandas as pd

    kind = series.dtype
    if not isinstance(kind, np.dtype):
        return pd.Series(list(series), name=series.name) if kind.kind in "iu" else series
    if kind.kind in "iu" and kind.itemsize < np.dtype(np.int64).itemsize:
        return series.astype(np.int64)
    return series.astype(np.float64) if kind.kind == "f" else series


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    """What PySpark makes of columns' names, some of which are none of Python's."""
    make: Any = namedtuple  # noqa: PYI024  # its rule for names is what PySpark goes by
    fields: tuple[str, ...] = make("Names", columns, rename=True)._fields
    return fields


class FrameChunks:
    """Makes frames of a batch: those of most keys are slices of one."""

    def __init__(self, rows: pa.RecordBatch, conf: TaskConf) -> None:
        self._rows = rows
        self._conf = conf
        self._names = _names(rows.schema.names)
        self._most = rows_per_chunk(rows)
        self._begin = self._end = 0
        self._window: Any = None
        # Columns of the window whose type depends on which rows are in a frame.
        self._alone: list[int] = []

    def iterator(self, begin: int, end: int) -> Iterator[Any]:
        """Frames of the rows from `begin` to `end`."""
        for at in range(begin, end, self._most):
            yield self._frame(at, min(at + self._most, end))

    def _frame(self, begin: int, end: int) -> Any:
        import pandas as pd

        if not self._begin <= begin <= end <= self._end:
            self._turn_to(begin)
        frame = self._window.iloc[begin - self._begin : end - self._begin]
        # It is nobody's else: these rows are handed out once.
        frame._is_copy = None
        frame.index = pd.RangeIndex(end - begin)
        for at in self._alone:
            frame = frame.assign(**{self._names[at]: self._series(at, begin, end)})
        return frame

    def _turn_to(self, begin: int) -> None:
        import pandas as pd

        end = min(begin + self._most, len(self._rows))
        self._begin, self._end = begin, end
        names = enumerate(self._names)
        self._window = pd.DataFrame({name: self._series(at, begin, end) for at, name in names})
        self._alone = [
            at
            for at, column in enumerate(self._rows.columns)
            if (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))
            and column.slice(begin, end - begin).null_count
        ]

    def _series(self, at: int, begin: int, end: int) -> Any:
        column = self._rows.column(at).slice(begin, end - begin)
        return rebuilt(series_of(column, self._names[at], self._conf))


class FrameOutputs:
    """Frames of many keys, which become Arrow together where no coercion has a say."""

    def __init__(self, output: StructType, conf: TaskConf) -> None:
        self._conf = conf
        self._schema = arrow_schema(output)
        self._codec = PandasCodec(output, conf)
        self._names = output.names
        self._takes = [_taker(field.dataType) for field in output.fields]
        self._plain = conf.by_name and all(take is not None for take in self._takes)
        self._columns: list[list[Any]] = [[] for _ in self._names]
        self._waiting = 0
        self._ready: list[pa.RecordBatch] = []
        self.rows = 0

    def add(self, frame: Any) -> None:
        """Take a frame.

        Raises
        ------
        PySparkValueError
            If it is none.
        """
        import pandas as pd

        if not isinstance(frame, pd.DataFrame):
            raise PySparkValueError(_NOT_A_FRAME)
        self.rows += len(frame)
        taken = self._taken_apart(frame) if self._plain else None
        if taken is None:
            self._put_together()
            self._ready.append(self._converted(frame))
            return
        for column, values in zip(self._columns, taken, strict=True):
            column.append(values)
        self._waiting += 1

    def _taken_apart(self, frame: Any) -> list[Any] | None:
        """Columns of a frame, if all are of the declared types as they are."""
        if len(frame.columns) != len(self._names):
            return None
        taken = []
        for name, take in zip(self._names, self._takes, strict=True):
            if name not in frame.columns or take is None:
                return None
            values = take(frame[name].to_numpy())
            if values is None:
                return None
            taken.append(values)
        return taken

    def _converted(self, frame: Any) -> pa.RecordBatch:
        array = self._codec.to_arrow(frame, len(frame))
        return pa.RecordBatch.from_arrays(array.flatten(), schema=self._schema)

    def _put_together(self) -> None:
        if not self._waiting:
            return
        arrays = [
            pa.array(np.concatenate(values), from_pandas=True).cast(
                field.type, safe=self._conf.safe_cast
            )
            for values, field in zip(self._columns, self._schema, strict=True)
        ]
        self._ready.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._columns = [[] for _ in self._names]
        self._waiting = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Hand on what was taken."""
        self._put_together()
        ready, self._ready, self.rows = self._ready, [], 0
        yield from (batch for batch in ready if len(batch))


def _taker(kind: DataType) -> Callable[[Any], Any] | None:
    """Return what gives the values of a column back, or ``None`` if they are to be converted."""
    if isinstance(kind, IntegralType):
        return lambda values: values if values.dtype.kind == "i" else None
    if isinstance(kind, FloatType | DoubleType):
        return lambda values: values if values.dtype.kind == "f" else None
    if isinstance(kind, BooleanType):
        return lambda values: values if values.dtype.kind == "b" else None
    return _texts if isinstance(kind, StringType) else None


_TEXTS = frozenset((str, type(None)))


def _texts(values: Any) -> Any:
    is_text = values.dtype.kind == "O" and _TEXTS.issuperset(map(type, values))
    return values if is_text else None
