"""Objects that several entries of state hold: a change in place is an error of the user's code in tests and debug runs. It
would be in all of them in memory, and in one on disk and after a restart."""

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.state.sharing import AS_BEFORE, Place, Sharing, UsedEntry
from tailrace.state.tables import MISSING


class Bag:
    def __init__(self, items: list[Any]) -> None:
        self.items = items


# A property: there is an error exactly where a program with an object for each entry would go on otherwise.


def as_restored(state: dict[str, Any]) -> dict[str, Any]:
    return {name: pickle.loads(pickle.dumps(value)) for name, value in state.items()}


NAMES = st.sampled_from("abc")
MAKERS: dict[str, Callable[[], Any]] = {
    "list": list,
    "in a tuple": lambda: ([], 1),
    "in a dictionary": lambda: {"x": []},
    "field": lambda: (Bag([]), "y"),
    "deep": lambda: [1, {"z": ([],)}],
    "beside a time zone, which is unpickled as itself": lambda: ([], ZoneInfo("UTC")),
}


def list_in(value: Any) -> list[Any]:
    """The innermost list of a value that `MAKERS` has made."""
    parts = [value.items] if isinstance(value, Bag) else value.values() if isinstance(value, dict) else value
    inner = [list_in(one) for one in parts if isinstance(one, list | tuple | dict | Bag)]
    return inner[0] if inner else value


ACT = st.one_of(
    st.tuples(st.just("make"), NAMES, st.sampled_from([*MAKERS])),
    st.tuples(st.just("share"), NAMES, NAMES),
    st.tuples(st.just("share what is inside"), NAMES, NAMES),
    st.tuples(st.just("change"), NAMES, st.just("")),
    st.tuples(st.just("clear"), NAMES, st.just("")),
)


def act(state: dict[str, Any], what: str, name: str, more: str) -> None:
    if what == "make":
        state[name] = MAKERS[more]()
    elif what == "clear":
        state.pop(name, None)
    elif name in state:
        if what == "share":
            state[more] = state[name]
        elif what == "share what is inside":
            state[more] = list_in(state[name])
        else:
            list_in(state[name]).append(1)


def as_text(value: Any) -> Any:
    if isinstance(value, Bag):
        return ("Bag", as_text(value.items))
    if isinstance(value, dict):
        return {key: as_text(value[key]) for key in sorted(value)}
    return [type(value).__name__, *map(as_text, value)] if isinstance(value, list | tuple) else value


@given(st.lists(st.lists(ACT, min_size=1, max_size=3), max_size=25))
@settings(max_examples=200, deadline=None)
def test_there_is_an_error_exactly_where_a_restart_would_give_another_state(
    calls: list[list[tuple[str, str, str]]],
) -> None:
    """The state of the program in memory stays as it is; that of the restored one comes back from its bytes after each
    call, entry by entry."""
    sharing, watched, memory, restored = Sharing(), dict[str, Any](), dict[str, Any](), dict[str, Any]()

    def entries() -> Iterator[UsedEntry]:
        for name in "abc":
            yield UsedEntry(Place(name, 1), partial(watched.get, name, MISSING), partial(watched.__setitem__, name))

    for call in calls:
        for state in (watched, memory, restored):
            for one in call:
                act(state, *one)
        restored = as_restored(restored)
        same = as_text(memory) == as_text(restored)
        try:
            sharing.check(entries)
        except tr.StateAccessError:
            assert not same
            return
        assert same and as_text(watched) == as_text(memory)


# Functions.


class Shares(tr.KeyedProcessFunction):
    """Puts each list that it receives into two entries, and changes it later."""

    bag = tr.ValueState(list)
    bags = tr.ListState(list)
    shelves = tr.MapState(str, list)
    own = tr.OperatorState(list)

    def __init__(self, way: str) -> None:
        self.way = way

    def open(self, ctx: Any) -> None:
        self.last: list[int] = []  # not state

    def process(self, value: Any, ctx: Any) -> Any:
        first = not self.bag.exists()
        if self.way == "two states" and first:
            self.bag.value = made = [0]
            self.bags.append(made)
        elif self.way == "two keys":
            self.last = self.bag.value = self.last if first else self.bag.value
        elif self.way == "inside" and first:
            self.bag.value = [made := [0]]
            self.shelves["a"] = made
            self.shelves["b"] = []
        elif self.way == "the operator's" and first:
            self.bag.value = [0]
            self.own.value = self.bag.value
        elif self.way == "a copy" and first:
            self.bag.value = [0]
            self.bags.append([0])
        elif self.way == "never changed":
            self.bag.value = made = [value]
            self.bags.append(made)
        elif self.way == "moved":
            made = self.bag.value or [0]
            made.append(1)
            self.bag.clear()
            self.shelves["a"] = made
            self.shelves.clear()
            self.bag.value = made
        elif self.way == "set anew each time":
            made = [*(self.bag.value or [])]
            made.append(value)
            self.bag.value = made
            self.shelves["a"] = made
        if self.way in ("two states", "two keys", "the operator's", "a copy"):
            self.bag.value.append(value)
        elif self.way == "inside":
            self.bag.value[0].append(value)
        yield len(self.bag.value)


WRONG = {
    "two states": "state 'bag' of key . was changed in place, and state 'bags' of key . was given",
    "two keys": "state 'bag' of key . was changed in place, and state 'bag' of key . was given",
    "inside": "state 'bag' of key . was changed in place, and state 'shelves' of key . was given",
    "the operator's": "state 'bag' of key . was changed in place, and state 'own' was given",
}
RIGHT = ("a copy", "never changed", "moved", "set anew each time")


def program(way: str, **options: Any) -> tr.Environment:
    env = tr.Environment(parallelism=1, **options)
    numbers = env.from_collection([1, 2, 3, 4, 5, 6])
    numbers.key_by(lambda v: v % 2).process(Shares(way), name="shares").sink_to(tr.sinks.Collect())
    return env


RUNS: dict[str, Callable[[str], Any]] = {
    "run": lambda way: tr.testing.run(program(way)),
    "simulate": lambda way: tr.testing.simulate(program(way)).await_termination(),
    "audit": lambda way: tr.testing.audit(program(way)),
    "a debug run": lambda way: tr.testing.run(program(way, debug=True)),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("way", WRONG)
def test_an_object_of_two_entries_that_is_changed_in_place_is_an_error_of_the_function(run: str, way: str) -> None:
    with pytest.raises(tr.JobFailed, match=rf"(?s)'shares'.*record \d: .*{WRONG[way]}.*copy\.deepcopy"):
        RUNS[run](way)


@pytest.mark.parametrize("way", RIGHT)
def test_an_object_that_is_never_changed_may_be_in_two_entries(way: str) -> None:
    """So may one that moves from one entry to another, and one that is set in both each time."""
    for run in RUNS.values():
        run(way)


def test_entries_may_share_what_is_unpickled_as_itself() -> None:
    zone = ZoneInfo("UTC")
    state: dict[str, Any] = {"a": (zone,), "b": (zone, [])}
    entries = [
        UsedEntry(Place(name, None), partial(state.get, name, MISSING), partial(state.__setitem__, name))
        for name in state
    ]
    sharing = Sharing()
    for _ in range(3):
        sharing.check(lambda: entries)
    assert state["a"][0] is zone is state["b"][0]
    state["b"][1].append(1)
    before = state["b"]
    sharing.check(lambda: entries)
    assert state["b"] is before  # it is not copied at each call


def test_an_entry_that_was_not_used_since_the_last_cut_keeps_its_value() -> None:
    """Three entries get one time zone in the same call, and are used again behind a cut, without a change."""
    zone, cut = ZoneInfo("UTC"), False
    state: dict[str, Any] = {"a": (zone,), "b": (zone,), "c": (zone,)}
    entries = [
        UsedEntry(
            Place(name, None), lambda name=name: AS_BEFORE if cut else state[name], partial(state.__setitem__, name)
        )
        for name in state
    ]
    sharing = Sharing()
    sharing.check(lambda: entries)
    cut = True
    for _ in range(2):
        sharing.check(lambda: entries)
    assert state == {"a": (zone,), "b": (zone,), "c": (zone,)}


def test_a_harness_finds_it_too() -> None:
    h = tr.testing.harness(Shares("two states"), key=lambda v: 0)
    h.push(1)
    with pytest.raises(tr.UserCodeError, match="was given the same object"):
        h.push(2)


def test_large_values_are_looked_at_so_seldom_that_a_call_costs_the_same() -> None:
    class Counted(list[int]):
        looks = 0

        def __reduce_ex__(self, protocol: Any) -> Any:
            Counted.looks += 1
            return list, (list(self),)

    bag, sharing = Counted([[] for _ in range(1_000)]), Sharing()  # type: ignore[misc]
    entries = [UsedEntry(Place("bag", 1), lambda: bag, lambda value: None)]
    for _ in range(620):
        sharing.check(lambda: entries)
    assert 8 <= Counted.looks <= 12


def test_a_large_entry_is_looked_at_before_it_is_blamed() -> None:
    """What it does not hold any more has moved."""
    moved: list[int] = []
    state: dict[str, Any] = {"large": [moved, *([] for _ in range(1_000))]}
    sharing = Sharing()

    def entries() -> Iterator[UsedEntry]:
        for name in ("large", "small"):
            yield UsedEntry(Place(name, 1), partial(state.get, name, MISSING), partial(state.__setitem__, name))

    sharing.check(entries)
    state["small"] = state["large"].pop(0)
    for _ in range(3):
        sharing.check(entries)
        state["small"].append(1)
    state["large"].append(state["small"])
    for _ in range(100):
        sharing.check(entries)
    state["small"].append(1)
    with pytest.raises(tr.StateAccessError, match="state 'small' of key 1 was changed in place, and state 'large'"):
        sharing.check(entries)
