"""``@causal`` on a table function: ``@causal @udtf(returnType=…) class …``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.udtf import UserDefinedTableFunction

from clonos._attached import current_config
from clonos._calls import Calls
from clonos._code import code_fingerprint
from clonos._operators.places import warn_unrecorded
from clonos._uses import new_use
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from clonos._operators.options import Options


@dataclass(frozen=True)
class Handler:
    """The class of a table function, and how its calls are recorded."""

    cls: type
    options: Options

    @property
    def uid(self) -> str:
        """Stable name of the operator."""
        return self.options.uid or f"{self.cls.__module__}.{self.cls.__qualname__}"

    def shipped(self) -> type:
        """Return the class that Spark runs, which records for the attached session."""
        from clonos._worker.udf import UdfSpec
        from clonos._worker.udtf import make_handler

        config = current_config()
        if config is None:
            warn_unrecorded(self.uid, stacklevel=6)
        options = self.options
        spec = UdfSpec(
            use=new_use(
                self.uid,
                code_fingerprint(self.cls, options.code_version),
                named=options.uid is not None,
            ),
            kind="udtf",
            return_type=None,
            record=options.record,
            flush=options.flush,
            concurrency=1,
            arguments=0,
            keyed=False,
            allow_code_change=options.allow_code_change,
            count_occurrences=True,
            label=self.cls.__qualname__,
            calls=None,
            config=None if config is None else config.to_bytes(),
        )
        return make_handler(spec, self.cls)


class _Causal:
    """What a causal table function has before it is one of Spark's."""

    _handler: Handler

    @property
    def uid(self) -> str:
        """Stable name of the operator: the one given, else the class's qualified name."""
        return self._handler.uid

    @property
    def func(self) -> type:
        """The class that Spark runs, which is also what ``spark.udtf.register`` takes."""
        return self._handler.shipped()

    @func.setter
    def func(self, _cls: type) -> None:
        """Do nothing: PySpark's constructor sets what is made when it is asked for."""


class CausalUDTF(_Causal, UserDefinedTableFunction):
    """A causal table function; made by `causal`, used like PySpark's own.

    Each call of ``eval`` and of ``terminate`` is recorded with the rows it gave.
    """

    def __init__(self, udtf: UserDefinedTableFunction, options: Options) -> None:
        self._handler = Handler(udtf.func, options)
        super().__init__(
            udtf.func,
            udtf._returnType,
            name=udtf._name,
            evalType=udtf.evalType,
            deterministic=False,
        )

    @property
    def _judtf(self) -> Any:
        # Made anew each time: another session may have been attached since.
        return self._create_judtf(self.func)


def causal_udtf(udtf: Any, return_type: Any, options: Options) -> CausalUDTF:
    """Return the causal form of what ``pyspark.sql.functions.udtf`` made.

    Raises
    ------
    ConfigError
        If another type is declared; if an option is out of range.
    """
    options.check("udtf")
    Calls.parse("udtf", options.record, **options.calls)
    if return_type is not None:
        message = f"the type of {udtf.func.__qualname__} is the one given to udtf; give causal none"
        raise ConfigError(message, "CONFIG")
    if isinstance(udtf, UserDefinedTableFunction):
        return CausalUDTF(udtf, options)
    plain: Any = type(udtf)
    made: CausalUDTF = _of_client(plain)(udtf, options)
    return made


@functools.cache
def _of_client(plain: Any) -> Any:
    """The same class over the table functions of Spark Connect, which may not be installed."""

    class ClientUDTF(_Causal, plain):  # type: ignore[misc]
        __doc__ = CausalUDTF.__doc__

        def __init__(self, udtf: Any, options: Options) -> None:
            self._handler = Handler(udtf.func, options)
            plain.__init__(self, udtf.func, udtf.returnType, udtf._name, udtf.evalType)

    return ClientUDTF
