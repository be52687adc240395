"""Makes the calls of a causal function the way its options say.

From the inside out: the function with its client, within its time-out, when the rate limit permits,
once more if it failed, and its exception as an answer.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from clonos import _core
from clonos._calls import Calls, is_ours
from clonos._keys import CallKeys, TaskKeys
from clonos._services import current
from clonos._worker import agents, clients

# Permits are reserved for this long ahead, if all that were reserved before were used. One that is
# later than this is lost: else those saved up would all be used at once.
PERMIT_NS = 50_000_000

Function = Callable[..., Any]


@contextlib.contextmanager
def prepared(
    calls: Calls | None,
    fn: Function,
    uid: str,
    config: _core.SessionConfig | None,
    *,
    asynchronous: bool,
) -> Iterator[tuple[Function, asyncio.Runner | None]]:
    """The function that makes the calls, and the event loop it must run in, if it is bound to one.

    Parameters
    ----------
    calls : Calls, optional
        Its options.
    fn : callable
        The user's function.
    uid : str
        Name of the operator, and so of its rate limit.
    config : _core.SessionConfig, optional
        Where the permits are; without a session they are this worker's own.
    asynchronous : bool
        Whether `fn` is a coroutine function.
    """
    if calls is None:
        yield fn, None
        return
    permits = None
    if calls.interval_ns is not None:
        permits = Permits(calls.interval_ns, _reserve(config, uid, calls.interval_ns))
    client = clients.lend(calls.setup, asynchronous=asynchronous) if calls.setup else None
    wrap = _coroutine if asynchronous else _plain
    failed = True
    try:
        made = wrap(calls, fn, permits, client)
        if made is not fn:
            # Who looks for the user's function finds it.
            functools.update_wrapper(made, fn)
        yield made, client.runner if client else None
        failed = False
    finally:
        if client is not None:
            # PySpark ends a worker whose task has failed.
            clients.give_back(client, worker_ends=failed)


def _plain(
    calls: Calls, fn: Function, permits: Permits | None, client: clients.Client | None
) -> Function:
    call = fn
    if client is not None:
        with_client = fn

        def call(*args: Any, **kwargs: Any) -> Any:
            return with_client(client.get(), *args, **kwargs)

    if permits is not None:
        call = _limited(call, permits)
    retrying = calls.retrying(asynchronous=False)
    if retrying is not None:
        once = call

        def tried(*args: Any, **kwargs: Any) -> Any:
            same_keys()
            return once(*args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            return retrying.copy()(tried, *args, **kwargs)

    if calls.on_error == "raise":
        return call

    def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            return _answer(calls, call(*args, **kwargs))
        except Exception as error:
            return _failure(calls, error)

    return answered


def _limited(call: Function, permits: Permits) -> Function:
    def limited(*args: Any, **kwargs: Any) -> Any:
        if (wait := permits.wait()) > 0:
            time.sleep(wait)
        return call(*args, **kwargs)

    return limited


def _coroutine(
    calls: Calls, fn: Function, permits: Permits | None, client: clients.Client | None
) -> Function:
    async def call(*args: Any, **kwargs: Any) -> Any:
        same_keys()
        if permits is not None:
            # Asking for permits may wait for the driver; other calls go on meanwhile.
            wait = await asyncio.to_thread(permits.wait)
            await asyncio.sleep(wait)
        if client is not None:
            args = (await client.get_in_loop(), *args)
        try:
            async with asyncio.timeout(calls.timeout) as limit:
                return await fn(*args, **kwargs)
        except TimeoutError as error:
            if not limit.expired() or str(error):
                raise
            message = f"no answer within {calls.timeout:g} s, the timeout= of this function"
            raise TimeoutError(message) from error

    retrying = calls.retrying(asynchronous=True)

    @functools.wraps(fn)
    async def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            outcome = await (
                call(*args, **kwargs)
                if retrying is None
                else retrying.copy()(call, *args, **kwargs)
            )
            return _answer(calls, outcome)
        except Exception as error:
            return _failure(calls, error)

    return answered


def same_keys() -> None:
    """The keys of a call that is tried again are those it had: it may have been made."""
    key = current.get().key
    if isinstance(key, CallKeys | TaskKeys):
        key.again()


def _answer(calls: Calls, value: Any) -> Any:
    return (value, None) if calls.on_error == "record" else value


def _failure(calls: Calls, error: Exception) -> Any:
    """The answer that stands for an exception, if one does."""
    if calls.on_error == "raise" or is_ours(error):
        raise error
    if calls.on_error == "null":
        return None
    # What tenacity says of the last try has an address in it, and not what went wrong.
    last = getattr(error, "last_attempt", None)
    cause = last.exception() if isinstance(last, Future) and last.done() else None
    reason = error if cause is None else cause
    return None, f"{type(reason).__qualname__}: {reason}"


class Permits:
    """Permits of a rate limit, reserved some at a time.

    Parameters
    ----------
    interval_ns : int
        Nanoseconds from one permit to the next.
    reserve : callable
        Reserves so many permits, and returns the nanoseconds until the first.
    """

    def __init__(self, interval_ns: int, reserve: Callable[[int], int]) -> None:
        self._interval_ns = interval_ns
        self._reserve = reserve
        self._due: collections.deque[int] = collections.deque()
        self._most = max(1, PERMIT_NS // interval_ns)
        self._ahead = 1
        self._lock = threading.Lock()

    def wait(self) -> float:
        """Take a permit; seconds until it is due."""
        with self._lock:
            now = time.monotonic_ns()
            while self._due and self._due[0] < now - PERMIT_NS:
                self._due.popleft()
                # They were reserved in vain: others may need them.
                self._ahead = 1
            if not self._due:
                first = now + self._reserve(self._ahead)
                self._due.extend(first + n * self._interval_ns for n in range(self._ahead))
                self._ahead = min(2 * self._ahead, self._most)
            return max(0, self._due.popleft() - time.monotonic_ns()) / 1e9


def _reserve(
    config: _core.SessionConfig | None, name: str, interval_ns: int
) -> Callable[[int], int]:
    if config is None:
        return functools.partial(_reserve_here, [0], interval_ns)
    # A connection of its own: on the task's, answers wait until what was sent before is stable.
    connection: list[_core.Client] = []

    def reserve(count: int) -> int:
        if not connection or not connection[0].is_usable():
            connection[:] = [_core.Client.connect(config, agents.socket_for(config))]
        return connection[0].permits(name, interval_ns, count)

    return reserve


def _reserve_here(due: list[int], interval_ns: int, count: int) -> int:
    now = time.monotonic_ns()
    first = max(now, due[0])
    due[0] = first + count * interval_ns
    return first - now
