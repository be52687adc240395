"""What an instance of a table function keeps comes back as it was, shared objects and all."""

from __future__ import annotations

import collections
import copy
import enum
import itertools
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos._named import Named
from clonos._worker.state import ATTRIBUTE_BYTES_MAX, State
from clonos.errors import ConfigError

LOCK = threading.Lock()


class Account:
    def __init__(self) -> None:
        self.total = 0


class Mode(enum.Enum):
    QUIET = 1
    LOUD = 2


# As if they stood in the program itself: no process finds them by their module.
Account.__module__ = Mode.__module__ = "__main__"


class Bank:
    """All ways to keep something that went wrong once."""

    def __init__(self) -> None:
        self.accounts: dict[int, Account] = {}
        self.current: Account | None = None
        self.listed: list[Account] = []
        self.numbers: list[int] = []
        self.alias = self.numbers
        self.step = self.first
        self.add: Any = None
        self.mode = Mode.QUIET
        self.client = LOCK
        self.first_words = {"b", "a"}
        self.recent: Any = collections.deque(maxlen=3)
        self.table = np.arange(6.0).reshape(2, 3)
        self.column: Any = None

    def first(self, number: int) -> None:
        self.numbers.append(number)
        self.step = self.second

    def second(self, number: int) -> None:
        self.alias.append(-number)
        self.step = self.first

    def eval(self, kind: int, number: int) -> Any:
        if kind == 0:
            self.current = self.accounts.setdefault(number, Account())
        elif kind == 1 and self.current is not None:
            self.current.total += number + 1
            self.listed.append(self.current)
        elif kind == 2:
            self.step(number)
        elif kind == 3:
            self.add = lambda value: value * 100 + number + len(self.numbers)
        elif kind == 4:
            self.mode = Mode.LOUD if self.mode is Mode.QUIET else Mode.QUIET
            self.recent.append((number, self.mode))
        elif kind == 5:
            self.numbers = self.alias = [number]
        elif kind == 6:
            self.column = self.table[:, number % 3].copy()
            self.first_words = {str(number), "a"}
        elif kind == 7 and hasattr(self, "numbers"):
            self.accounts, self.listed = dict(list(self.accounts.items())[-1:]), self.listed[-1:]
        return self.seen()

    def seen(self) -> Any:
        shared = [
            [each is account for account in self.accounts.values()]
            for each in [*self.listed, self.current]
        ]
        return copy.deepcopy(
            [
                {key: account.total for key, account in self.accounts.items()},
                *(shared, self.numbers, self.alias is self.numbers, self.mode is Mode.LOUD),
                self.add and self.add(3),
                *(self.step.__name__, self.step.__self__ is self, sorted(self.first_words)),
                [(number, mode is Mode.LOUD) for number, mode in self.recent],
                *(self.client is LOCK, None if self.column is None else self.column.tolist()),
            ]
        )


for part in (Bank, *vars(Bank).values()):
    if callable(part):
        part.__module__ = "__main__"
NAMED = Named(Bank)
CALLS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=12)


def run(
    instance: Any, calls: Any, recorded: list[Any] | None = None
) -> tuple[list[Any], list[Any]]:
    """Make calls, the first of them as recorded: what each showed, and what each changed."""
    seen, made = [], []
    for number, call in enumerate(calls):
        state = State(instance, "bank", NAMED)
        identity = list(state.identity())
        if recorded is not None and number < len(recorded):
            was, changes = recorded[number]
            assert identity == was
            state.restore(changes)
            seen.append(instance.seen())
        else:
            seen.append(instance.eval(*call))
            made.append((identity, state.changes()))
    return seen, made


@given(CALLS, st.integers(0, 12))
def test_calls_go_on_as_if_none_had_been_replayed(calls: Any, replayed: int) -> None:
    seen, recorded = run(Bank(), calls)
    again, made = run(Bank(), calls, recorded[:replayed])
    assert again == seen
    assert [identity for identity, _ in made] == [i for i, _ in recorded[replayed:]]


def test_an_object_in_an_attribute_that_did_not_change_stays_that_object() -> None:
    class Kept:
        def __init__(self) -> None:
            self.all = [Account(), Account()]
            self.turn: Any = None

    kept, other = Kept(), Kept()
    for index in (0, 1):
        state = State(kept, "kept", NAMED)
        kept.turn = kept.all[index]
        replay = State(other, "kept", NAMED)
        assert list(replay.identity()) == list(state.identity())
        replay.restore(state.changes())
        assert other.turn is other.all[index]


def test_a_client_that_is_put_elsewhere_is_that_client() -> None:
    class Job:
        def __init__(self) -> None:
            self.client = threading.Lock()
            self.todo: Any = None

    job, other = Job(), Job()
    state, replay = State(job, "job", Named()), State(other, "job", Named())
    job.todo = ("ask", job.client)
    replay.restore(state.changes())
    assert other.todo == ("ask", other.client)


class Place:
    def __init__(self, name: str) -> None:
        self.name = name
        self.near: set[Place] = set()


class Anything:
    pass


def test_places_that_are_near_each_other_come_back() -> None:
    """A set in a set in a set, and sets that lead back to where they began."""
    instance: Any = Anything()
    other: Any = Anything()
    state, replay = State(instance, "map", Named()), State(other, "map", Named())
    places = [Place(str(number)) for number in range(40)]
    for one, next_one in itertools.pairwise([*places, places[0]]):
        one.near |= {next_one}
        next_one.near |= {one}
    chain = Place("end")
    for number in range(60):
        before, chain = chain, Place(f"chain {number}")
        chain.near = {before}
    instance.places, instance.chain = {place.name: place for place in places}, chain
    replay.restore(state.changes())
    assert {place.name for place in other.places["0"].near} == {"1", "39"}
    assert other.places["1"] in other.places["0"].near


def test_a_part_of_what_is_too_large_is_too_large_as_well() -> None:
    instance: Any = Anything()
    instance.model = {"weights": [float(number) for number in range(20_000)], "bias": 1}
    instance.weights = instance.model["weights"]
    instance.wrapped = (threading.Lock(), [0.5] * 20_000)
    instance.part = instance.wrapped[1]
    state = State(instance, "model", Named())
    instance.count = 1
    changes = state.changes()
    assert changes is not None
    assert len(changes) < 100


def test_numbers_are_no_code() -> None:
    instance: Any = Anything()
    state = State(instance, "numbers", Named())
    instance.a, instance.b, instance.c = [0.0] * 8_000, [1.0] * 8_000, [2.0] * 8_000
    assert state.changes() is not None


def test_what_a_call_notes_at_a_function_comes_back() -> None:
    def counting() -> Any:
        def function() -> None:
            pass

        function.calls = 0
        return function

    instance: Any = Anything()
    other: Any = Anything()
    instance.step, other.step = counting(), counting()
    state, replay = State(instance, "noted", Named()), State(other, "noted", Named())
    instance.step.calls += 1
    replay.restore(state.changes())
    assert other.step.calls == 1


def test_a_call_that_changes_nothing_has_nothing_to_put_back() -> None:
    bank = Bank()
    state = State(bank, "bank", NAMED)
    bank.numbers = list(bank.numbers)
    bank.alias = bank.numbers
    assert state.changes() is None


def test_classes_of_the_program_are_found_by_name_and_their_code_is_not_recorded() -> None:
    bank = Bank()
    state = State(bank, "bank", NAMED)
    bank.eval(0, 1)
    changes = state.changes()
    assert changes is not None
    assert len(changes) < 400
    assert NAMED["__main__", "Account"] is Account


def test_classes_that_were_made_in_one_place_are_told_apart() -> None:
    def missing() -> type:
        class Missing:
            pass

        # As if the program itself had made it.
        Missing.__module__ = "__main__"
        return Missing

    class Keeps:
        users, orders = missing(), missing()

        def __init__(self) -> None:
            self.kind: type = self.users
            self.seen = self.users()

        def change(self) -> None:
            self.kind, self.seen = self.orders, self.orders()

    named = Named(Keeps)
    live = Keeps()
    state = State(live, "keeps", named)
    live.change()
    changes = state.changes()
    again = Keeps()
    state = State(again, "keeps", named)
    state.restore(changes)
    assert again.kind is Keeps.orders
    assert type(again.seen) is Keeps.orders


def test_what_is_too_large_or_cannot_be_kept_is_refused() -> None:
    class Holder:
        pass

    class Slots:
        __slots__ = ("a",)

    holder: Any = Holder()
    state = State(holder, "holder", Named())
    holder.text = "x" * (ATTRIBUTE_BYTES_MAX + 1)
    with pytest.raises(ConfigError, match=r"keeps \d+ bytes in self\.text"):
        state.changes()
    holder.text, holder.lock = "", threading.Lock()
    with pytest.raises(ConfigError, match=r"sets self\.lock in a call"):
        state.changes()
    del holder.lock
    table = bytes(ATTRIBUTE_BYTES_MAX * 2)
    holder.fn = eval("lambda: table", {"table": table, "__name__": "__main__"})
    with pytest.raises(ConfigError, match="code that no module has"):
        state.changes()
    with pytest.raises(ConfigError, match="__slots__"):
        State(Slots(), "slots", Named())
