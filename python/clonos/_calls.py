"""How the calls of a causal function are made: again, at which rate, how long, and with what."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from clonos._config import OnError, choice
from clonos.errors import ClonosError, ConfigError

if TYPE_CHECKING:
    import tenacity
    from pyspark.sql.types import DataType

RETRIES_MAX = 1_000
# Back-off between tries: a random time up to this, doubled at each try, up to the longest.
BACK_OFF_SECONDS = 0.5
BACK_OFF_SECONDS_MAX = 30.0
TIMEOUT_SECONDS_MAX = 86_400.0
RATE_MAX = 1e9

# Kinds whose calls are made by us, or which at least take a client.
_KINDS = {"row", "async", "pandas", "pandas_iter", "arrow", "arrow_iter"}
_NS = {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_RATE = re.compile(
    r"^\s*(\d+(?:\.\d+)?)\s*/\s*(?:(s)(?:ec(?:ond)?)?|(m)(?:in(?:ute)?)?|(h)(?:our)?)\s*$"
)
# What a tenacity object consists of; the object itself cannot travel to a worker.
_TENACITY = (
    "stop",
    "wait",
    "retry",
    "before",
    "after",
    "before_sleep",
    "reraise",
    "retry_error_cls",
    "retry_error_callback",
)


@dataclass(frozen=True)
class Calls:
    """Options of the calls of one function; travels to the workers. See `clonos.causal`.

    `retries` holds the parts of a tenacity object, `interval_ns` the time between two calls at the
    rate limit, `setup` a pickle.
    """

    retries: dict[str, Any] | None = None
    on_error: str = "raise"
    interval_ns: int | None = None
    timeout: float | None = None
    setup: bytes | None = None

    @staticmethod
    def parse(
        kind: str,
        record: str,
        *,
        retries: int | tenacity.BaseRetrying = 0,
        on_error: str = "raise",
        rate_limit: str | None = None,
        timeout: float | None = None,
        setup: Callable[[], Any] | None = None,
    ) -> Calls | None:
        """Options as users write them, or ``None`` if calls are made plainly.

        Raises
        ------
        ConfigError
            Names the option that is wrong, or cannot be kept by functions of this kind.
        """
        choice("on_error", on_error, OnError)
        calls = Calls(
            _parse_retries(retries),
            on_error,
            _parse_rate(rate_limit),
            _parse_timeout(timeout),
            _pickled(setup),
        )
        calls._check(kind, record)
        return None if calls == Calls() else calls

    def _check(self, kind: str, record: str) -> None:
        given = {
            "retries": self.retries is not None,
            "on_error": self.on_error != "raise",
            "rate_limit": self.interval_ns is not None,
            "timeout": self.timeout is not None,
        }
        if kind not in _KINDS:
            given["setup"] = self.setup is not None
            for name in (name for name, is_given in given.items() if is_given):
                _refuse(f"{name}= is for scalar functions, not for aggregates and table functions")
        if kind.endswith("_iter"):
            for name in (name for name, is_given in given.items() if is_given):
                _refuse(f"{name}= cannot be kept by an iterator UDF, which makes its calls itself")
        if given["on_error"] and kind not in {"row", "async"}:
            _refuse(
                f"on_error={self.on_error!r} is for functions of one row; in a function of a batch "
                "catch the exception, and return nulls for the rows it concerns"
            )
        if given["timeout"] and kind != "async":
            _refuse(
                "timeout= needs an `async def` function: a plain one cannot be interrupted safely; "
                "or give the time-out to the client that makes the call"
            )
        if record == "services":
            for name in ("rate_limit", "timeout"):
                if given[name]:
                    _refuse(f"{name}= needs record='result': a replay runs the function again")

    def answer_type(self, declared: DataType) -> DataType:
        """Spark type of a result, where the function's own is `declared`."""
        from pyspark.sql.types import StringType, StructField, StructType

        if self.on_error != "record":
            return declared
        return StructType([StructField("value", declared), StructField("error", StringType())])

    def client(self) -> tuple[Any, ...]:
        """First argument of a plain call: what `setup` makes in this process, if it is given."""
        return () if self.setup is None else (_plain_client(self.setup),)

    def retrying(self, *, asynchronous: bool) -> Any:
        """The tenacity object that makes the tries of one call, or ``None``."""
        if self.retries is None:
            return None
        import tenacity

        kind = tenacity.AsyncRetrying if asynchronous else tenacity.Retrying
        return kind(**self.retries)


def signature_of(fn: Callable[..., Any], calls: Calls | None) -> inspect.Signature:
    """What a caller of `fn` passes: not what ``setup=`` makes.

    Raises
    ------
    TypeError, ValueError
        If `fn` has no signature.
    """
    signature = inspect.signature(fn)
    if calls is None or calls.setup is None:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


class UnsendableFunction(ConfigError, pickle.PicklingError):
    """As PySpark's error for the same function."""


@contextlib.contextmanager
def telling_of_setup(uid: str) -> Iterator[None]:
    """Say what to do where a function cannot be sent to the workers."""
    try:
        yield
    except pickle.PicklingError as error:
        message = f"{uid} cannot be sent to the workers: {str(error).rstrip('.')}"
        # Spark says itself what to do about its own objects.
        if "SPARK-" not in message and "CONTEXT_ONLY_VALID_ON_DRIVER" not in message:
            message += (
                ". If it holds a client, a connection or a lock, make that in the workers: "
                "setup=make_client, and take it as first argument"
            )
        raise UnsendableFunction(message, "CONFIG") from error


def is_ours(error: BaseException) -> bool:
    """Whether an exception is Clonos's own: never retried, never taken for an answer."""
    return isinstance(error, ClonosError) or not isinstance(error, Exception)


@functools.cache
def _plain_client(setup: bytes) -> Any:
    return pickle.loads(setup)()


def _is_retried(error: BaseException) -> bool:
    return not is_ours(error)


def _parse_retries(value: Any) -> dict[str, Any] | None:
    if value is None or (type(value) is int and value == 0):
        return None
    import tenacity

    if type(value) is int and 0 < value <= RETRIES_MAX:
        return {
            "stop": tenacity.stop_after_attempt(value + 1),
            "wait": tenacity.wait_random_exponential(BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX),
            "retry": tenacity.retry_if_exception(_is_retried),
            "reraise": True,
        }
    if isinstance(value, tenacity.BaseRetrying):
        return {name: getattr(value, name) for name in _TENACITY}
    message = f"retries={value!r} is neither a number up to {RETRIES_MAX} nor tenacity.Retrying"
    raise ConfigError(message, "CONFIG")


def _parse_rate(value: Any) -> int | None:
    if value is None:
        return None
    match = _RATE.match(value) if isinstance(value, str) else None
    rate = float(match[1]) if match else 0.0
    if match is None or not 0 < rate <= RATE_MAX:
        _refuse(f"rate_limit={value!r} is not a number per time, such as '100/s' or '60/min'")
    return max(1, round(_NS[match[2] or match[3] or match[4]] / rate))


def _parse_timeout(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in {int, float} or not 0 < value <= TIMEOUT_SECONDS_MAX:
        _refuse(f"timeout={value!r} is not between 0 and {TIMEOUT_SECONDS_MAX:.0f} seconds")
    return float(value)


def _pickled(setup: Any) -> bytes | None:
    if setup is None:
        return None
    if not callable(setup):
        _refuse(f"setup={setup!r} is not a function that makes what the calls need")
    from pyspark import cloudpickle

    try:
        return cloudpickle.dumps(setup)  # type: ignore[no-any-return, no-untyped-call]
    except (pickle.PicklingError, TypeError) as error:
        message = f"setup= cannot be sent to the workers ({error}); make the client inside of it"
        raise ConfigError(message, "CONFIG") from error


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message, "CONFIG")
