"""What of Spark's does more while a session is attached: ``attach(adopt=…)`` and ``foreachBatch``.

What users have imported cannot be replaced where it stands, so nothing that they import is:
replaced is what Spark looks up at each call. The names are in `clonos._driver.spark_private`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from clonos._attached import current_config
from clonos._driver import spark_private
from clonos._driver.batches import in_any_thread
from clonos._operators.adopted import adopted
from clonos._operators.state import stateful
from clonos._operators.udf import CausalUDF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

    from clonos._state.program import Flavour

Function = Callable[..., Any]


class Adoption:
    """What is replaced for one session, until `end`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._patches: list[_Patch] = []
        try:
            for owner, name, make in _replacements(names, self.end):
                self._patches.append(_Patch(owner, name, make))
        except Exception:
            # Another Spark may not have one of them.
            self.end()
            raise

    def end(self) -> None:
        """Give everything back to Spark; nothing if that is done."""
        while self._patches:
            self._patches.pop().take_back()


class _Patch:
    """A function that stands in the place of another, until it is taken back."""

    def __init__(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        self._owner = owner
        self._name = name
        self._original: Function = vars(owner)[name]
        self._called = make(self._original)

        @functools.wraps(self._original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return self._called(*args, **kwargs)

        self._replacement = replacement
        setattr(owner, name, replacement)

    def take_back(self) -> None:
        # Somebody may have put something over it, which goes on calling it.
        self._called = self._original
        if vars(self._owner)[self._name] is self._replacement:
            setattr(self._owner, self._name, self._original)


def _replacements(
    names: tuple[str, ...], end: Callable[[], None]
) -> Iterator[tuple[Any, str, Callable[[Function], Function]]]:
    """Owner and name of each function, and what makes another of it."""
    yield *spark_private.stopping(), functools.partial(_ending, end)
    yield *spark_private.taking_batches(), _in_any_thread
    if "transformWithState" in names:
        operations = spark_private.grouped_operations()
        yield operations, "transformWithState", functools.partial(_stateful, "row")
        yield operations, "transformWithStateInPandas", functools.partial(_stateful, "pandas")
    if "udf" in names:
        for module in spark_private.makers_of_functions():
            yield module, spark_private.MAKER, _making
        yield spark_private.registration(), "register", _registering


def _ending(end: Callable[[], None], original: Function) -> Function:
    def stop(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            end()

    return stop


def _in_any_thread(original: Function) -> Function:
    def foreach_batch(self: Any, func: Any) -> Any:
        return original(self, in_any_thread(func) if callable(func) else func)

    return foreach_batch


def _making(original: Function) -> Function:
    def make(*args: Any, **kwargs: Any) -> Any:
        # Made by Spark first, with all that it checks.
        return adopted(original(*args, **kwargs))

    return make


def _registering(original: Function) -> Function:
    def register(self: Any, name: str, f: Any, returnType: Any = None) -> Any:
        is_udf = hasattr(f, "asNondeterministic")
        if isinstance(f, CausalUDF) or (is_udf and returnType is not None):
            return original(self, name, f, returnType)
        made = adopted(f) if is_udf else spark_private.row_function(name, f, returnType)
        if not isinstance(made, CausalUDF):
            return original(self, name, f, returnType)
        return made.register(self.sparkSession, name)

    return register


def _stateful(flavour: Flavour, original: Function) -> Function:
    def transform(  # noqa: PLR0917  # Spark's
        self: GroupedData,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        given = (outputStructType, outputMode, timeMode, initialState, eventTimeColumnName)
        if not _is_kept():
            made: DataFrame = original(self, statefulProcessor, *given)
            return made
        return stateful(self, statefulProcessor, *given, flavour=flavour, is_adopted=True)

    return transform


def _is_kept() -> bool:
    """Whether Clonos can keep an operator's state; otherwise that stays Spark's."""
    config = current_config()
    return config is not None and config.guarantee == "exactly_once"
