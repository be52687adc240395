"""What services give is recorded, and comes back as it was in another process of the program."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any, Self

import pytest

import clonos
from clonos import _services, causal
from clonos._services import Scope
from clonos.errors import CallsOverlap, ConfigError, ReplayDivergence

PROGRAM = """
import dataclasses
import enum

import clonos


class NotFound(Exception):
    pass


@dataclasses.dataclass
class Price:
    value: float


class Kind(enum.Enum):
    A = 1


def kind_of(number):
    class Odd:
        def __eq__(self, other):
            return isinstance(other, type(self))

    return Odd


Odd, Even = kind_of(1), kind_of(2)


class Client:
    def __init__(self, special):
        self.special = special

    def fetch(self, number):
        if number == 0:
            raise NotFound(f"no {number}")
        return [Price(number), Kind.A, Odd(), Even(), self.special(), double][number - 1]


def double(number):
    return 2 * number


def make():
    class Special:
        pass

    client = Client(Special)

    def ask(number):
        try:
            found = clonos.call(client.fetch, number)
        except NotFound as error:
            return f"not found: {error}"
        seen = [isinstance(found, Price), found is Kind.A, found == Odd(), found == Even()]
        return [*seen, type(found) is client.special, found is double]

    return ask


def made():
    def fetch():
        class Answer:
            price = 1.5

        return Answer()

    return lambda: clonos.call(fetch).price


def hidden():
    def fetch():
        return type("Hidden", (), {"__module__": "__main__"})()

    def ask():
        try:
            return clonos.call(fetch)
        except clonos.errors.ClonosError as error:
            return str(error)

    return ask
"""


class Log:
    """Records the outcomes of calls, or gives back what another has recorded."""

    def __init__(self, recorded: list[tuple[str, bool, bytes]] | None = None) -> None:
        self.made: list[tuple[str, bool, bytes]] = []
        self._left = list(recorded or ())

    def time_ns(self) -> int:
        return 0

    def getrandbits(self, bits: int) -> int:
        return bits

    def random(self) -> float:
        return 0.5

    def call_begin(self, name: str) -> tuple[bool, bytes] | None:
        if not self._left:
            return None
        recorded, ok, data = self._left.pop(0)
        assert recorded == name
        return ok, data

    def call_record(self, name: str, ok: bool, value: bytes) -> None:
        self.made.append((name, ok, value))


def within(scope: Scope, work: Callable[[], Any]) -> Any:
    token = _services.current.set(scope)
    try:
        return work()
    finally:
        _services.current.reset(token)


def test_a_plain_call_of_a_causal_function_is_recorded_where_services_are() -> None:
    asked = []

    @causal("int")
    def price(number: int) -> int:
        asked.append(number)
        return number * len(asked)

    live = Log()
    first = within(Scope(live), lambda: [price(3), price(3)])
    replay = Log(live.made)
    assert within(Scope(replay), lambda: [price(3), price(3)]) == first == [3, 6]
    assert asked == [3, 3]
    assert price(3) == 9


class ApiError(Exception):
    """Makes its text of what it is given."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Named(ConnectionError):
    """Must be given names, and has slots."""

    __slots__ = ("request",)

    def __init__(self, text: str, *, request: str) -> None:
        super().__init__(7, text)
        self.request = request


class OwnWay(Exception):
    """Says itself how it is made again."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first + second)
        self.parts = (first, second)

    def __reduce__(self) -> Any:
        return OwnWay, self.parts


class LostText(Exception):
    """Says itself how it is made again, and loses its text on the way."""

    def __init__(self, pool: object, url: str) -> None:
        super().__init__(f"{pool}: no {url}")
        self.pool, self.url, self.lock = pool, url, threading.Lock()

    def __reduce__(self) -> Any:
        return LostText, (None, self.url)


class Several(ExceptionGroup[Exception]):
    def __new__(cls, errors: list[Exception], code: int) -> Self:
        made = super().__new__(cls, f"code {code}", errors)
        made.code = code
        return made

    def __init__(self, errors: list[Exception], code: int) -> None:
        pass


def noted() -> Exception:
    error = ValueError("x", 3)
    error.add_note("what was asked")
    error.__cause__ = ApiError(404)
    return error


def undecodable() -> Exception:
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


ERRORS: dict[str, Callable[[], Exception]] = {
    "text": lambda: ApiError(500),
    "names": lambda: Named("away", request="r"),
    "own way": lambda: OwnWay(1, 2),
    "group": lambda: Several([ApiError(1), Named("away", request="r")], 5),
    "notes": noted,
    "file": lambda: FileNotFoundError(2, "no such file", "a.txt", None, "b.txt"),
    "text of file": lambda: OSError("only text"),
    "code": undecodable,
    "import": lambda: ImportError("no m", name="m", path="p"),
    "key": lambda: KeyError("k"),
    "syntax": lambda: SyntaxError("bad", ("f.py", 1, 2, "x x", 1, 3)),
}


def seen_of(error: BaseException | None) -> Any:
    """What who catches an exception may look at."""
    if error is None:
        return None
    names = ("errno", "strerror", "filename", "filename2", "name", "path", "start", "object")
    names += ("request", "status", "parts", "code", "url", "lineno", "message", "__notes__")
    held = {name: getattr(error, name) for name in names if hasattr(error, name)}
    inner = [seen_of(each) for each in getattr(error, "exceptions", ())]
    args = [seen_of(each) if isinstance(each, Exception) else str(each) for each in error.args]
    cause, suppressed = seen_of(error.__cause__), error.__suppress_context__
    return type(error), str(error), repr(held), inner, args, cause, suppressed


def caught(log: Log, raised: Callable[[], Exception]) -> Exception:
    def service() -> None:
        raise raised()

    with pytest.raises(Exception) as info:
        within(Scope(log, function=None), lambda: _services.call(service))
    return info.value


@pytest.mark.parametrize("raised", ERRORS.values(), ids=ERRORS)
def test_an_exception_comes_back_as_it_was(raised: Callable[[], Exception]) -> None:
    live = Log()
    first = caught(live, raised)
    again = caught(Log(live.made), raised)
    assert seen_of(again) == seen_of(first) == seen_of(raised())


def test_an_exception_keeps_its_text_without_what_cannot_be_pickled() -> None:
    live = Log()
    first = caught(live, lambda: LostText(threading.Lock(), "/"))
    again = caught(Log(live.made), lambda: LostText(None, "/"))
    assert isinstance(again, LostText)
    assert (str(again), again.args, again.url) == (str(first), first.args, "/")
    assert str(again.pool) == str(first.pool)
    with pytest.raises(ReplayDivergence, match="acquire of a lock is asked for"):
        again.lock.acquire()


def test_an_exception_that_would_be_another_is_refused_at_once() -> None:
    def raised() -> Exception:
        return type("Hidden", (ValueError,), {"__module__": "__main__"})("x")

    live = Log()
    first = caught(live, raised)
    assert "raised cannot be recorded: Hidden: x" in str(first)
    assert isinstance(first, ConfigError)
    again = caught(Log(live.made), raised)
    assert (type(again), str(again)) == (ConfigError, str(first))


def start() -> dict[str, Any]:
    """Run the program, as in a process of its own."""
    program: dict[str, Any] = {"__name__": "__main__"}
    exec(PROGRAM, program)
    return program


def test_outcomes_are_of_the_classes_of_a_program_that_was_started_again() -> None:
    def run(log: Log) -> list[Any]:
        ask = start()["make"]()
        return within(Scope(log, function=ask), lambda: [ask(number) for number in range(7)])

    live = Log()
    first = run(live)
    assert first[0] == "not found: no 0"
    assert [each.index(True) for each in first[1:]] == [0, 1, 2, 3, 4, 5]
    assert run(Log(live.made)) == first
    # The code is not recorded with each call.
    assert max(len(data) for _, _, data in live.made) < 300


def test_an_outcome_of_a_class_that_nothing_names_is_refused() -> None:
    def run(log: Log) -> Any:
        ask = start()["hidden"]()
        return within(Scope(log, function=ask), ask)

    live = Log()
    first = run(live)
    assert "names the class Hidden, so that a replay could not give it back" in first
    assert run(Log(live.made)) == first


def test_an_outcome_of_a_class_that_a_function_makes_for_itself_is_recorded() -> None:
    def run(log: Log) -> Any:
        ask = start()["made"]()
        return within(Scope(log, function=ask), ask)

    live = Log()
    assert run(live) == 1.5
    assert run(Log(live.made)) == 1.5


def test_a_class_that_is_not_named_any_more_is_no_other_class() -> None:
    live = Log()
    program = start()
    ask = program["make"]()
    within(Scope(live, function=ask), lambda: ask(1))
    with pytest.raises(ReplayDivergence, match="Price is recorded, which the function does not"):
        within(Scope(Log(live.made), function=None), lambda: ask(1))


async def slow() -> None:
    await asyncio.sleep(30)


async def cancelled() -> None:
    raise asyncio.CancelledError


async def out_of_time(log: Log) -> list[str]:
    """Give a call up, wait for one that is given up by itself, and go on."""
    seen = []
    try:
        async with asyncio.timeout(0.02):
            try:
                await _services.call(slow)
            except Exception as error:
                seen.append(f"failed: {error!r}")
    except TimeoutError:
        seen.append("out of time")
    try:
        await _services.call(cancelled)
    except asyncio.CancelledError:
        seen.append("cancelled")
    task = asyncio.create_task(_services.call(slow))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    return [*seen, str(task.cancelled()), str(len(log.made))]


def test_a_call_that_was_given_up_is_given_up_again() -> None:
    live = Log()
    first = within(Scope(live), lambda: asyncio.run(out_of_time(live)))
    assert first == ["out of time", "cancelled", "True", "3"]
    replay = Log(live.made)
    again = within(Scope(replay), lambda: asyncio.run(out_of_time(replay)))
    assert again == [*first[:3], "0"]


def test_a_call_that_is_not_given_up_again_is_no_other_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = Log()
    within(Scope(live), lambda: asyncio.run(out_of_time(live)))
    monkeypatch.setattr(_services, "CANCELLED_SECONDS_MAX", 0.01)

    async def patient() -> None:
        await _services.call(slow)

    with pytest.raises(ReplayDivergence, match="was given up when it was recorded"):
        within(Scope(Log(live.made)), lambda: asyncio.run(patient()))


def test_calls_that_overlap_end_the_task_whatever_it_makes_of_that() -> None:
    async def both() -> None:
        first = asyncio.create_task(_services.call(asyncio.sleep, 0.01))
        with contextlib.suppress(CallsOverlap):
            await _services.call(asyncio.sleep(0))
        await first

    scope = Scope(Log())
    within(scope, lambda: asyncio.run(both()))
    with pytest.raises(CallsOverlap, match="gathers them"):
        scope.check()


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


@pytest.mark.parametrize("raised", [lambda: Frozen(3), lambda: KeyError(object())])
def test_exceptions_that_cannot_be_changed_or_have_no_text_of_their_own(
    raised: Callable[[], Exception],
) -> None:
    live = Log()
    first = caught(live, raised)
    again = caught(Log(live.made), raised)
    assert type(again) is type(first) is type(raised())
    assert getattr(again, "code", None) == getattr(first, "code", None)


def chained(length: int) -> Exception:
    error: Exception = ValueError("first")
    for number in range(length):
        last = error
        error = RuntimeError(f"level {number + 1}")
        error.__context__ = last
    return error


def test_a_long_chain_of_exceptions_is_cut() -> None:
    live = Log()
    caught(live, lambda: chained(300))
    again: BaseException | None = caught(Log(live.made), lambda: chained(0))
    texts = []
    while again is not None:
        texts.append(str(again))
        again = again.__context__
    assert texts == [f"level {number}" for number in range(300, 249, -1)]


def test_an_exception_without_a_constructor_comes_back() -> None:
    pydantic = pytest.importorskip("pydantic")

    def raised() -> Exception:
        adapter = pydantic.TypeAdapter(dict[str, int])
        with pytest.raises(pydantic.ValidationError) as info:
            adapter.validate_python({"a": "x", "b": 1, "c": [1]})
        info.value.add_note("what was asked")
        return info.value

    live = Log()
    first: Any = caught(live, raised)
    again: Any = caught(Log(live.made), raised)
    assert seen_of(again) == seen_of(first)
    assert again.errors() == first.errors()


def test_what_ends_a_task_ends_it_whatever_the_function_makes_of_it() -> None:
    def ask() -> list[str]:
        found = []
        for _ in range(2):
            try:
                clonos.call(threading.Lock)
            except Exception as error:
                found.append(type(error).__name__)
        return found

    live = Log()
    for log in (live, Log(live.made)):
        scope = Scope(log, function=ask)
        assert within(scope, ask) == ["ConfigError", "ConfigError"]
        assert len(live.made) == 1
        with pytest.raises(ConfigError, match="cannot be recorded"):
            scope.check()


def test_what_is_not_there_at_replay_ends_the_task_whatever_the_function_makes_of_it() -> None:
    def service() -> None:
        raise LostText(threading.Lock(), "/")

    def asks_for_more() -> str:
        try:
            clonos.call(service)
        except LostText as error:
            with contextlib.suppress(ReplayDivergence):
                error.lock.acquire()
        return "goes on"

    live = Log()
    scope = Scope(live, function=asks_for_more)
    assert within(scope, asks_for_more) == "goes on"
    scope.check()
    scope = Scope(Log(live.made), function=asks_for_more)
    assert within(scope, asks_for_more) == "goes on"
    with pytest.raises(ReplayDivergence, match="is asked for"):
        scope.check()
