"""Causal services: the clock, random numbers and calls whose outcome is recorded.

Inside a causal task each reading is a determinant: logged the first time, given back at replay.
Outside one (on the driver, in a test, in plain Python) they behave as the plain thing, so that code
that uses them needs no Spark to be tried.
"""

from __future__ import annotations

import functools
import inspect
import os
import random as _stdlib_random
import secrets
import time as _stdlib_time
import uuid as _stdlib_uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from clonos import _unrecorded
from clonos._named import ATOMS, Named
from clonos._outcomes import Awaited, Cancelled, Refused, Sight, dumps, dumps_error, loads
from clonos.errors import (
    CallsOverlap,
    ClonosError,
    ConfigError,
    ForkedProcess,
    ReplayDivergence,
)

if TYPE_CHECKING:
    import numpy as np

# A replay waits this long for the function to give a call up that it gave up before.
CANCELLED_SECONDS_MAX = 3600.0
P = ParamSpec("P")
R = TypeVar("R")


class Recorder(Protocol):
    """What the services need of a task that records them: the core's ``ServiceTask``."""

    def time_ns(self) -> int: ...
    def getrandbits(self, bits: int) -> int: ...
    def random(self) -> float: ...
    def call_begin(self, name: str) -> tuple[bool, bytes] | None: ...
    def call_record(self, name: str, ok: bool, value: bytes) -> None: ...


class Scope:
    """The causal task in which the current code runs.

    `recorder` is ``None`` under ``record="result"``: there the whole result is the determinant and
    the services are the plain ones. `key` makes the idempotency key of the call in progress;
    `after` runs after each recorded outcome (``flush="call"`` publishes there). `function` is what
    runs in it: outcomes are of classes that it may name. `awaited` is the name of the call that is
    being awaited, if there is one; `failed` what ends the task, whatever the function makes of it.
    """

    __slots__ = ("_function", "_named", "_within", "after", "awaited", "failed", "key", "recorder")

    def __init__(
        self,
        recorder: Recorder | None,
        key: Callable[[], str] | None = None,
        after: Callable[[], None] | None = None,
        function: Any = None,
    ) -> None:
        self.recorder = recorder
        self.key = key
        self.after = after
        self.awaited: str | None = None
        self.failed: ClonosError | None = None
        self._function = function
        self._named: Named | None = None
        self._within: Scope | None = None

    def within(self) -> Scope:
        """Return the scope of what a call runs: nothing of it is recorded by itself."""
        if self._within is None:
            self._within = Scope(None, self.key)
        return self._within

    def named(self) -> Named:
        """Classes and functions of the program that the function names."""
        if self._named is None:
            self._named = Named(self._function)
        return self._named

    def fail(self, error: ClonosError) -> ClonosError:
        """End the task with `error`, which is returned: a function may catch all there is."""
        self.failed = self.failed or error
        return error

    def check(self) -> None:
        """Raise what ends the task."""
        if self.failed is not None:
            raise self.failed


_NO_SCOPE = Scope(None)
# Of tasks in which nothing is recorded because the session says so.
_UNRECORDED = Scope(None)
current: ContextVar[Scope] = ContextVar("clonos_scope", default=_NO_SCOPE)


class _Forked:
    """In the place of a task's recorder, in a process that its function has forked.

    What such a process recorded nobody would have, and what it was given would be the answers to
    other questions: the next ones of its parent.
    """

    def _refuse(self, *_args: Any) -> Any:
        message = (
            "a causal service was used in a process that a causal function has forked, where "
            "nothing is recorded: use it before the fork, or in the function itself, and hand what "
            "it gave to the process"
        )
        raise ForkedProcess(message, "FORKED_PROCESS")

    time_ns = getrandbits = random = call_begin = call_record = _refuse


def _forked() -> None:
    """Let the child of a fork not record, or read, in its parent's name."""
    scope = current.get()
    if scope.recorder is not None:
        scope.recorder = _Forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def record_nothing() -> None:
    """Let the services of this task be the plain ones, as the session asks, without a warning."""
    current.set(_UNRECORDED)


def _note(scope: Scope, service: str) -> None:
    if scope is _NO_SCOPE:
        _unrecorded.note(service)


def in_scope() -> bool:
    """Whether a causal function is running, which records what happens in it."""
    return current.get() not in (_NO_SCOPE, _UNRECORDED)


def time_ns() -> int:
    """Nanoseconds since 1970, recorded in a causal task."""
    scope = current.get()
    if scope.recorder is None:
        _note(scope, "clonos.time")
        return _stdlib_time.time_ns()
    value = scope.recorder.time_ns()
    if scope.after is not None:
        scope.after()
    return value


def time() -> float:
    """Seconds since 1970, recorded in a causal task: ``time.time()`` that replays."""
    return time_ns() / 1e9


def now(tz: tzinfo | None = None) -> datetime:
    """Date and time in `tz` (default: UTC), recorded in a causal task; microseconds."""
    return datetime.fromtimestamp(time_ns() // 1000 / 1e6, tz or UTC)


class CausalRandom(_stdlib_random.Random):
    """A ``random.Random`` whose numbers come from the task's recorded seed.

    Only the seed is logged, once per task. Rows have streams of their own, so that a row gets the
    same numbers when a replay brings it in another place. Not for cryptography.
    """

    def random(self) -> float:
        """Next float in [0, 1)."""
        scope = current.get()
        if scope.recorder is None:
            _note(scope, "clonos.random")
            return _plain_random.random()
        value = scope.recorder.random()
        if scope.after is not None:
            scope.after()
        return value

    def getrandbits(self, k: int, /) -> int:
        """Integer of `k` random bits."""
        scope = current.get()
        if scope.recorder is None:
            _note(scope, "clonos.random")
            return _plain_random.getrandbits(k)
        value = scope.recorder.getrandbits(k)
        if scope.after is not None:
            scope.after()
        return value

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        """Normal distribution; the standard library's keeps every second number for later."""
        return self.normalvariate(mu, sigma)

    def seed(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: the seed of a task is drawn once and recorded."""

    def getstate(self) -> tuple[Any, ...]:
        """Refuse: the state is the task's."""
        message = "the state of clonos.random belongs to the task and cannot be saved"
        raise NotImplementedError(message)

    def setstate(self, state: tuple[Any, ...]) -> None:
        """Refuse: the state is the task's."""
        message = f"clonos.random takes no state of {len(state)} parts: its seed is recorded"
        raise NotImplementedError(message)

    def __reduce__(self) -> Any:
        return (_shared_random, ())


_plain_random = _stdlib_random.SystemRandom()
random = CausalRandom()


def _shared_random() -> CausalRandom:
    return random


def numpy_rng() -> np.random.Generator:
    """Return a NumPy generator seeded from the task's recorded seed, or from the system."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(random.getrandbits(128)))


def uuid4() -> _stdlib_uuid.UUID:
    """Return a random UUID (version 4), from the task's recorded seed."""
    return _stdlib_uuid.UUID(int=random.getrandbits(128), version=4)


def token_bytes(n: int = 32) -> bytes:
    """Return `n` bytes fit for secrets: drawn from the system, and recorded themselves."""
    return call(secrets.token_bytes, n)


def call(fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `fn` and record what came of it; at replay it is not called.

    Parameters
    ----------
    fn : callable
        Anything whose result, or exception, can be pickled. What a coroutine function, or any
        other that returns an awaitable, gives is awaited: ``await clonos.call(client.get, url)``.
        A coroutine can stand for it: ``await clonos.call(client.get(url))``.
    *args, **kwargs
        Passed to `fn`. They are not recorded.

    Returns
    -------
    object
        What `fn` returned, now or when it was recorded.

    Raises
    ------
    Exception
        What `fn` raised, now or when it was recorded. One that ends the task is asked again.
    ReplayDivergence
        If another service was asked for at this point when the log was recorded.
    CallsOverlap
        If another call is being awaited: at replay it could not be told which was which.

    Examples
    --------
    >>> import clonos
    >>> clonos.call(len, "outside Spark this is a plain call")
    34
    """
    scope = current.get()
    recorder = scope.recorder
    service: Any = fn
    if recorder is None:
        if scope is not _NO_SCOPE:
            return service(*args, **kwargs) if callable(service) else service  # type: ignore[no-any-return]
        _unrecorded.note(f"a call of {getattr(fn, '__qualname__', type(fn).__qualname__)}")
        # What it asks itself is part of this call: one warning is enough.
        token = current.set(_UNRECORDED)
        try:
            return service(*args, **kwargs) if callable(service) else service  # type: ignore[no-any-return]
        finally:
            current.reset(token)
    name = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__name__)}"
    if scope.awaited is not None:
        if inspect.iscoroutine(service):
            service.close()
        raise scope.fail(_overlap(name, scope.awaited))
    scope.check()
    recorded = recorder.call_begin(name)
    if recorded is not None:
        sight = Sight(scope.named, service)
        if inspect.iscoroutine(service):
            service.close()
        return _given_again(scope, name, *recorded, sight)  # type: ignore[no-any-return]
    try:
        # What `fn` does inside is part of its one recorded outcome.
        token = current.set(scope.within())
        try:
            result = service(*args, **kwargs) if callable(service) else service
        finally:
            current.reset(token)
    except Exception as error:
        # Not published: if it ends the attempt, nothing depends on it and it is asked again.
        _record_error(scope, name, error, error, Sight(scope.named, service))
        raise
    # Most are plain, and then there is nothing to await, and nothing of the program in it.
    if type(result) in ATOMS:
        recorder.call_record(name, True, dumps(result))
    else:
        sight = Sight(scope.named, service)
        if inspect.isawaitable(result):
            scope.awaited = name
            return _awaited(scope, name, result, sight)  # type: ignore[return-value]
        _record(scope, name, result, result, sight)
    if scope.after is not None:
        scope.after()
    return result  # type: ignore[no-any-return]


def _overlap(name: str, awaited: str) -> CallsOverlap:
    message = (
        f"{name} is called while {awaited} is awaited: await one before the next, or make both in "
        "one call, `await clonos.call(fn)`, of a coroutine function that gathers them"
    )
    return CallsOverlap(message, "CALLS_OVERLAP")


def _record(scope: Scope, name: str, result: Any, outcome: Any, sight: Sight) -> None:
    """Record what a call gave, as `outcome`."""
    try:
        data = dumps(outcome, sight)
    except Exception as error:
        message = (
            f"what {name} returned cannot be recorded: a {type(result).__qualname__} cannot be "
            f"pickled ({error}); return the plain values that are needed of it"
        )
        raise _refused(scope, name, message, outcome, sight) from error
    _recorder(scope).call_record(name, True, data)


def _record_error(
    scope: Scope, name: str, error: BaseException, outcome: Any, sight: Sight
) -> None:
    """Record what a call raised, as `outcome`."""
    try:
        data = dumps_error(error, outcome, sight)
    except Exception as reason:
        kind = type(error).__qualname__
        message = (
            f"what {name} raised cannot be recorded: {kind}: {error} ({reason}); raise one that "
            "can be pickled in its place"
        )
        raise _refused(scope, name, message, outcome, sight) from error
    _recorder(scope).call_record(name, False, data)


def _recorder(scope: Scope) -> Recorder:
    if scope.recorder is None:
        raise AssertionError
    return scope.recorder


def _refused(scope: Scope, name: str, message: str, outcome: Any, sight: Sight) -> ClonosError:
    """Return the error that the function gets in place of an outcome, also at replay."""
    refused = Refused(message)
    recorded = Awaited(refused) if isinstance(outcome, Awaited) else refused
    _recorder(scope).call_record(name, False, dumps(recorded, sight))
    return scope.fail(ConfigError(message, "CONFIG"))


def _given_again(scope: Scope, name: str, ok: bool, value: bytes, sight: Sight) -> Any:
    try:
        outcome = loads(value, sight)
    except ReplayDivergence as error:
        raise scope.fail(error) from None
    is_awaited = isinstance(outcome, Awaited)
    given = outcome.outcome if is_awaited else outcome
    if isinstance(given, Cancelled):
        scope.awaited = name
        return _cancelled_again(scope, name)
    if isinstance(given, Refused):
        given = scope.fail(ConfigError(given.message, "CONFIG"))
    if is_awaited:
        return _ready(ok, given)
    if ok:
        return given
    raise given


async def _ready(ok: bool, outcome: Any) -> Any:
    if ok:
        return outcome
    raise outcome


async def _cancelled_again(scope: Scope, name: str) -> Any:
    """Wait until the function gives the call up, as it did when that was recorded.

    Only who cancels a task can say what becomes of it: `asyncio.timeout` makes a `TimeoutError` of
    its own cancellation and of no other. So it takes as long as it took, and comes the same way.
    """
    import asyncio

    try:
        await asyncio.sleep(CANCELLED_SECONDS_MAX)
    finally:
        scope.awaited = None
    message = f"{name} was given up when it was recorded, and not in {CANCELLED_SECONDS_MAX:.0f} s"
    raise scope.fail(ReplayDivergence(message, "REPLAY_DIVERGENCE"))


async def _awaited(scope: Scope, name: str, call: Awaitable[Any], sight: Sight) -> Any:
    import asyncio

    token = current.set(scope.within())
    try:
        result = await call
    except (Exception, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            _recorder(scope).call_record(name, False, dumps(Awaited(Cancelled())))
        else:
            # Also where the call was cancelled, and not who waits for it.
            _record_error(scope, name, error, Awaited(error), sight)
        raise
    else:
        _record(scope, name, result, Awaited(result), sight)
    finally:
        current.reset(token)
        scope.awaited = None
    if scope.after is not None:
        scope.after()
    return result


def service(fn: Callable[P, R]) -> Callable[P, R]:
    """Wrap `fn` so that each call is recorded: ``call`` as a decorator.

    Examples
    --------
    >>> import clonos
    >>> @clonos.service
    ... def price(item: str) -> int:
    ...     return len(item)
    >>> price("tea")
    3
    """

    @functools.wraps(fn)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        return call(fn, *args, **kwargs)

    return recorded


def idempotency_key() -> str:
    """Return a key that is the same for every attempt of the same call: 32 hex digits.

    Send it along with a request that has side effects. A service that honours such keys then acts
    once even if the call was sent, and everything that knew its answer died. Each time it is asked
    for, it is the key of another call, except within the function of a `clonos.call`, which has
    one. Outside a causal task each key is new.
    """
    scope = current.get()
    _note(scope, "clonos.idempotency_key")
    key = scope.key
    return os.urandom(16).hex() if key is None else key()
