"""The five kinds of keyed state: how they are declared, what they hold under each key, and where they may be used."""

import copy
import pickle
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import tailrace as tr
from tailrace.state.handles import states_of

NAN = float("nan")


def driven(body: Callable[..., Any], **states: Any) -> Any:
    """A harness of a function with these states; `push((key, argument))` calls `body(function, argument)`."""

    def process(self: Any, value: Any, ctx: tr.Context) -> Iterator[Any]:
        yield body(self, value[1])

    made = type("Made", (tr.KeyedProcessFunction,), {**states, "process": process})
    for name, state in states.items():
        state.__set_name__(made, name)
    return tr.testing.harness(made(), key=lambda value: value[0])


# What each kind holds.


def test_a_value_is_per_key_and_has_a_default() -> None:
    def count(function: Any, by: int) -> Any:
        function.seen.value += by
        return function.seen.value

    h = driven(count, seen=tr.ValueState(int, default=10))
    assert [h.push((key, by))[0] for key, by in [("a", 1), ("b", 2), ("a", 3)]] == [11, 12, 14]
    assert h.state("seen") == {"a": 14, "b": 12}


def test_a_value_is_read_and_written_in_two_ways() -> None:
    def both(function: Any, new: Any) -> Any:
        before = (function.seen.value, function.seen.get())
        function.seen.update(new)
        return before, function.seen.value

    h = driven(both, seen=tr.ValueState())
    assert h.push(("a", 1)) == [((None, None), 1)]
    assert h.push(("a", None)) == [((1, 1), None)]
    assert h.push(("a", 2)) == [((None, None), 2)]


def test_a_mutable_default_is_copied_for_each_key() -> None:
    default: dict[str, list[int]] = {"seen": []}

    def note(function: Any, value: int) -> Any:
        function.notes.value["seen"].append(value)
        return copy.deepcopy(function.notes.value)

    h = driven(note, notes=tr.ValueState(dict, default=default))
    assert h.push(("a", 1)) == [{"seen": [1]}]
    assert h.push(("b", 2)) == [{"seen": [2]}]
    assert h.push(("a", 3)) == [{"seen": [1, 3]}]
    assert default == {"seen": []}


def test_a_list_grows_and_is_replaced() -> None:
    def act(function: Any, what: Any) -> Any:
        items = function.items
        match what:
            case "add":
                items.add(len(items))
            case "extend":
                items.extend(["x", "y"])
            case [*new]:
                items.update(new)
        return items.get(), items.value, list(items), len(items), items.exists()

    def same(expected: list[Any]) -> Any:
        return [(expected, expected, expected, len(expected), bool(expected))]

    h = driven(act, items=tr.ListState(int))
    assert h.push(("a", "look")) == same([])
    assert h.push(("a", "add")) == same([0])
    assert h.push(("a", "add")) == same([0, 1])
    assert h.push(("b", "extend")) == same(["x", "y"])
    assert h.push(("a", ["new"])) == same(["new"])
    assert h.push(("a", [])) == same([])
    assert h.state("items") == {"b": ["x", "y"]}


def test_a_list_that_was_handed_on_does_not_change_with_the_state() -> None:
    def grow(function: Any, value: int) -> Any:
        function.items.add(value)
        return function.items.get()

    h = driven(grow, items=tr.ListState(int))
    for value in (1, 2, 3):
        h.push(("a", value))
    assert h.outputs == [[1], [1, 2], [1, 2, 3]]


def test_a_list_state_does_not_share_the_list_it_was_given() -> None:
    given = [1]

    def keep(function: Any, value: Any) -> Any:
        function.items.update(given)
        given.append(2)
        return function.items.get()

    assert driven(keep, items=tr.ListState(int)).push(("a", None)) == [[1]]


def test_a_map_is_used_like_a_dict() -> None:
    def act(function: Any, what: Any) -> Any:
        entries = function.entries
        if what == "look":
            return dict(entries.items()), entries.keys(), entries.values(), len(entries), entries.get("x", "none")
        if what == "fill":
            entries["x"] = 1
            entries.put("y", 2)
            entries.update({"z": 3, "y": 4})
        elif what == "empty":
            entries.remove("x")
            entries.remove("never there")
            del entries["y"]
            entries.value = {}
        return ("x" in entries, entries.contains("y"), list(entries), entries.get(), entries.value, entries.exists())

    h = driven(act, entries=tr.MapState(str, int))
    full = {"x": 1, "y": 4, "z": 3}
    assert h.push(("a", "look")) == [({}, [], [], 0, "none")]
    assert h.push(("a", "fill")) == [(True, True, ["x", "y", "z"], full, full, True)]
    assert h.push(("a", "look")) == [(full, ["x", "y", "z"], [1, 4, 3], 3, 1)]
    assert h.push(("b", "look")) == [({}, [], [], 0, "none")]
    assert h.push(("a", "empty")) == [(False, False, [], {}, {}, False)]
    assert h.state("entries") == {}


def test_an_entry_that_is_not_there_is_a_key_error() -> None:
    def look(function: Any, value: Any) -> Any:
        for act in (lambda: function.entries["x"], lambda: function.entries.__delitem__("x")):
            with pytest.raises(KeyError):
                act()
        return "told"

    assert driven(look, entries=tr.MapState(str, int)).push(("a", None)) == ["told"]


def test_a_reducing_state_merges_what_is_added() -> None:
    def add(function: Any, value: Any) -> Any:
        if value is not None:
            function.best.add(value)
        return function.best.get(), function.best.value, function.best.exists()

    h = driven(add, best=tr.ReducingState(int, reduce=max))
    assert h.push(("a", None)) == [(None, None, False)]
    assert [h.push(("a", value))[0][0] for value in (3, 1, 5)] == [3, 3, 5]
    assert h.push(("b", 1)) == [(1, 1, True)]


def test_an_aggregating_state_gives_the_result_of_what_is_added() -> None:
    def add(function: Any, value: Any) -> Any:
        if value is not None:
            function.mean.add(value)
        return function.mean.get(), function.mean.value

    h = driven(add, mean=tr.AggregatingState(float, aggregate=tr.Mean()))
    assert h.push(("a", None)) == [(None, None)]
    assert [h.push(("a", value))[0][0] for value in (1, 2, 6)] == [1.0, 1.5, 3.0]
    assert h.push(("b", 7)) == [(7.0, 7.0)]


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "value": (lambda: tr.ValueState(int), lambda state: state.update(1)),
    "list": (lambda: tr.ListState(int), lambda state: state.add(1)),
    "map": (lambda: tr.MapState(int, int), lambda state: state.put(1, 1)),
    "reducing": (lambda: tr.ReducingState(int, reduce=max), lambda state: state.add(1)),
    "aggregating": (lambda: tr.AggregatingState(int, aggregate=tr.Sum()), lambda state: state.add(1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_exists_once_written_and_no_more_once_cleared(kind: str) -> None:
    make, write = KINDS[kind]

    def act(function: Any, what: str) -> bool:
        if what == "write":
            write(function.held)
        elif what == "clear":
            function.held.clear()
        return function.held.exists()

    h = driven(act, held=make())
    assert [h.push(("a", what))[0] for what in ("look", "write", "look", "clear", "clear", "look")] == [
        False,
        True,
        True,
        False,
        False,
        False,
    ]
    h.push(("a", "write"))
    h.push(("b", "clear"))
    assert list(h.state("held")) == ["a"]


# Declarations.


class Base(tr.KeyedProcessFunction):
    seen = tr.ValueState(int, default=0)
    hidden = tr.ValueState(int)

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        self.seen.value += 1
        yield ctx.key, self.seen.value


class Derived(Base):
    more = tr.ListState(int)
    hidden = "no state any more"

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        self.more.add(value)
        yield from super().process(value, ctx)
        yield len(self.more)


def test_declarations_are_inherited_and_may_be_hidden() -> None:
    assert sorted(states_of(Derived())) == ["more", "seen"]
    assert sorted(states_of(Base())) == ["hidden", "seen"]
    h = tr.testing.harness(Derived(), key=lambda value: value % 2)
    assert h.push(3) == [(1, 1), 1]
    assert h.push(5) == [(1, 2), 2]


def test_a_declaration_is_bound_on_the_instance_only() -> None:
    function = Base()
    tr.testing.harness(function, key=abs).push(1)
    assert isinstance(vars(function)["seen"], tr.ValueState)
    assert "seen" in vars(Base) and Base().seen is Base.seen


def test_a_function_with_declarations_can_be_copied_and_pickled() -> None:
    for again in (copy.deepcopy(Base()), pickle.loads(pickle.dumps(Base()))):
        assert tr.testing.harness(again, key=abs).push(1) == [(1, 1)]


def test_a_state_that_nobody_bound_says_how_to_declare_it() -> None:
    class InInit(tr.KeyedProcessFunction):
        def __init__(self) -> None:
            self.seen = tr.ValueState(int)

        def process(self, value: Any, ctx: tr.Context) -> None:
            self.seen.update(value)

    with pytest.raises(tr.UserCodeError, match="only declared, not bound: declare it on the class of the function"):
        tr.testing.harness(InInit(), key=abs).push(1)
    with pytest.raises(tr.StateAccessError, match="state 'seen' is only declared, not bound"):
        Base().seen.update(1)


# State is reached only under its key.

USES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "value": (tr.ValueState(int), lambda s: s.value),
    "value set": (tr.ValueState(int), lambda s: s.update(1)),
    "value cleared": (tr.ValueState(int), lambda s: s.clear()),
    "value exists": (tr.ValueState(int), lambda s: s.exists()),
    "list": (tr.ListState(int), lambda s: s.get()),
    "list added": (tr.ListState(int), lambda s: s.add(1)),
    "list length": (tr.ListState(int), len),
    "list loop": (tr.ListState(int), list),
    "map": (tr.MapState(int, int), lambda s: s.get(1)),
    "map put": (tr.MapState(int, int), lambda s: s.put(1, 1)),
    "map in": (tr.MapState(int, int), lambda s: 1 in s),
    "reducing": (tr.ReducingState(int, reduce=max), lambda s: s.add(1)),
    "reducing get": (tr.ReducingState(int, reduce=max), lambda s: s.get()),
    "aggregating": (tr.AggregatingState(int, aggregate=tr.Sum()), lambda s: s.add(1)),
    "aggregating get": (tr.AggregatingState(int, aggregate=tr.Sum()), lambda s: s.get()),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("where", ["open", "finish", "afterwards"])
def test_outside_a_keyed_call_state_is_refused(use: str, where: str) -> None:
    state, act = USES[use]

    class Early(tr.KeyedProcessFunction):
        held = state

        def open(self, ctx: tr.Context) -> None:
            if where == "open":
                act(self.held)

        def process(self, value: Any, ctx: tr.Context) -> None: ...

        def finish(self, ctx: tr.Context) -> None:
            if where == "finish":
                act(self.held)

    function = Early()
    with pytest.raises((tr.UserCodeError, tr.StateAccessError)) as caught:
        h = tr.testing.harness(function, key=abs)
        h.push(1)
        h.end_input()
        act(function.held)
    assert "operator 'Early': keyed state was used where there is no key (in open, in close or outside a call)" in str(
        caught.value
    )


def test_the_key_itself_is_out_of_reach_too() -> None:
    class Early(tr.KeyedProcessFunction):
        def open(self, ctx: tr.Context) -> None:
            _ = ctx.key

        def process(self, value: Any, ctx: tr.Context) -> None: ...

    with pytest.raises(tr.UserCodeError, match=r"operator 'Early': ctx\.key was read where there is no key"):
        tr.testing.harness(Early(), key=abs)


def test_a_timer_needs_a_key_and_one_clock() -> None:
    def unkeyed(value: Any, ctx: tr.Context) -> None:
        ctx.set_timer(event_time=1)

    with pytest.raises(tr.UserCodeError, match="timers need a keyed stream; use key_by before"):
        tr.testing.harness(unkeyed).push(1)
    for unnamed, times in (
        ((), {}),
        ((), {"event_time": 1, "processing_time": 1}),
        ((1,), {}),
        ((1,), {"event_time": 1}),
    ):

        def wrong(value: Any, ctx: Any, unnamed: Any = unnamed, times: dict[str, float] = times) -> None:
            ctx.set_timer(*unnamed, **times)

        with pytest.raises(tr.UserCodeError, match="give a timer either event_time= or processing_time="):
            tr.testing.harness(wrong, key=abs).push(1)


def test_a_timer_that_nothing_takes_is_refused_when_it_is_set() -> None:
    """With the name of the method misspelt it fired, and nothing happened."""

    class Misspelt(tr.KeyedProcessFunction):
        def process(self, value: Any, ctx: tr.Context) -> None:
            ctx.set_timer(processing_time=1)

        def onTimer(self, timestamp: float, ctx: tr.Context) -> None: ...

    with pytest.raises(tr.UserCodeError, match=r"a tr\.KeyedProcessFunction with an on_timer of its own"):
        tr.testing.harness(Misspelt(), key=abs).push(1)
    given = Misspelt()
    given.on_timer = lambda timestamp, ctx: [timestamp]  # type: ignore[method-assign, assignment]
    harness = tr.testing.harness(given, key=abs)
    harness.push(1)
    assert harness.advance_clock(2) == [1.0]


# Equal keys find the same state.

ALIKE: list[list[Any]] = [
    [1, 1.0, True, Decimal(1), np.int64(1), np.float32(1.0), np.bool_(True)],
    [0, 0.0, -0.0, False, Decimal("-0"), np.float64(-0.0)],
    [NAN, float("-nan"), np.float64("nan"), np.float32("nan"), Decimal("nan"), Decimal("sNaN")],
    [(1, NAN), (1.0, -NAN), (True, np.float64("nan"))],
    [((NAN,), "x"), ((float("nan"),), "x")],
    [None, None],
    ["a", np.str_("a")],
    [2**70, Decimal(2**70), float(2**70)],
]


@pytest.mark.parametrize("keys", ALIKE, ids=repr)
def test_keys_that_are_equal_share_their_state(keys: list[Any]) -> None:
    h = tr.testing.harness(Base(), key=lambda value: value)
    assert [h.push(key)[0][1] for key in keys] == list(range(1, len(keys) + 1))
    assert len(h.state("seen")) == 1


@pytest.mark.parametrize("keys", ALIKE, ids=repr)
def test_keys_that_are_equal_go_to_the_same_subtask_and_share_everything_there(keys: list[Any]) -> None:
    def program(verb: Callable[[tr.KeyedStream], tr.DataStream]) -> list[Any]:
        env = tr.Environment(parallelism=3)
        out = verb(env.from_collection(keys).key_by(lambda key: key)).sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        return list(out.result())

    counts = list(range(1, len(keys) + 1))
    assert sorted(count for _, count in program(lambda k: k.process(Base()))) == counts
    assert sorted(count for _, count in program(lambda k: k.aggregate(Slow()))) == counts
    if not any(isinstance(key, Decimal) and key.is_snan() for key in keys):
        assert sorted(count for _, count in program(lambda k: k.count())) == counts


class Slow(tr.AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator


def test_keys_that_differ_have_their_own_state() -> None:
    keys = [0, 1, 2, "1", b"1", None, (), (1,), ((1,),), (1, 1), NAN, 0.5, Decimal("0.1"), 0.1, "", b"", -1]
    h = tr.testing.harness(Base(), key=lambda value: value)
    assert [h.push(key)[0][1] for key in keys] == [1] * len(keys)


# What is written in the place of a handle.


@pytest.mark.parametrize(
    ("state", "name", "way"),
    [
        (tr.ValueState(int, default=0), "total", r"self\.total\.value = \.\.\."),
        (tr.ListState(int), "items", r"self\.items\.value = \.\.\."),
        (tr.MapState(str, int), "seen", r"self\.seen\[key\] = \.\.\."),
    ],
)
def test_assigning_to_a_declared_state_instead_of_its_value_is_an_error(state: Any, name: str, way: str) -> None:
    """`self.total = 5` made an attribute of the function, which all keys of a subtask shared and no checkpoint held."""

    def replace(function: Any, value: Any) -> Any:
        setattr(function, name, value)

    h = driven(replace, **{name: state})
    with pytest.raises(tr.UserCodeError, match=rf"state '{name}' was replaced by 5 .* write {way}") as raised:
        h.push(("a", 5))
    assert raised.value.permanent


def test_a_misspelt_attribute_of_a_handle_is_an_error() -> None:
    def misspell(function: Any, value: Any) -> Any:
        function.total.valeu = value

    h = driven(misspell, total=tr.ValueState(int, default=0))
    with pytest.raises(tr.UserCodeError, match="'ValueState' object has no attribute 'valeu'"):
        h.push(("a", 5))


def test_a_list_is_used_like_a_list() -> None:
    def work(function: Any, value: Any) -> Any:
        items = function.items
        items.append(value)
        items.extend([value + 1, value + 2])
        items[0] = items[-1]
        del items[1]
        return list(items), len(items), items[-1], items[:1], value in items, value + 2 in items

    h = driven(work, items=tr.ListState(int))
    assert h.push(("a", 1)) == [([3, 3], 2, 3, [3], False, True)]
    assert h.push(("b", 7)) == [([9, 9], 2, 9, [9], False, True)]
    assert h.state("items") == {"a": [3, 3], "b": [9, 9]}


def test_deleting_the_last_item_of_a_list_forgets_it() -> None:
    def work(function: Any, value: Any) -> Any:
        function.items.append(value)
        del function.items[0]
        return function.items.exists()

    h = driven(work, items=tr.ListState(int))
    assert h.push(("a", 1)) == [False]
    assert h.state("items") == {}
