"""State that belongs to no key: used without one, saved, restored, and dealt out anew."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tailrace as tr
from tailrace.errors import IncompatibleState, StateAccessError, UserCodeError
from tailrace.state.backend import MetaPart
from tailrace.state.operator_state import OperatorStates


class Numbering(tr.ProcessFunction):
    given = tr.OperatorState(int, default=0)
    seen = tr.OperatorState(list, default=[])

    def open(self, ctx: tr.Context) -> None:
        self.started_at = self.given.value

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        self.given.value += 1
        self.seen.value.append(value)
        yield self.given.get(), value

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        yield "seen", list(self.seen.value)


def where(subtask: int = 0, parallelism: int = 1) -> Any:
    return SimpleNamespace(name="op", uid="u", subtask=subtask, parallelism=parallelism)


class Parts(Numbering):
    given = None  # type: ignore[assignment]
    parts = tr.OperatorState(list, default=[])
    seen = None  # type: ignore[assignment]


def test_it_is_used_without_a_key() -> None:
    h = tr.testing.harness(Numbering())
    assert h.push("a") == [(1, "a")]
    assert h.push("b") == [(2, "b")]
    assert h.end_input() == [("seen", ["a", "b"])]


def test_it_has_the_methods_of_a_value() -> None:
    function = Numbering()
    OperatorStates(function, where())
    assert (function.given.exists(), function.given.value) == (False, 0)
    function.given.update(3)
    assert (function.given.exists(), function.given.get()) == (True, 3)
    function.given.clear()
    assert (function.given.exists(), function.given.value) == (False, 0)
    assert Numbering.seen.default == []


def test_a_declaration_that_is_not_bound_is_reported() -> None:
    with pytest.raises(StateAccessError, match="'given' is only declared"):
        Numbering().given.value += 1


def test_a_declaration_can_be_pickled() -> None:
    declared = pickle.loads(pickle.dumps(Numbering.given))
    assert declared.bind().value == 0


def saved(function: Any, subtask: int, parallelism: int, finished: bool = False, **values: Any) -> MetaPart:
    states = OperatorStates(function, where(subtask, parallelism))
    for name, value in values.items():
        getattr(function, name).value = value
    return MetaPart(subtask, parallelism, finished, states.snapshot())


def test_at_equal_parallelism_each_subtask_gets_its_own() -> None:
    parts = [saved(Numbering(), i, 2, given=i + 10, seen=[i], finished=i == 1) for i in range(2)]
    for i in range(2):
        function = Numbering()
        OperatorStates(function, where(i, 2)).restore(parts)
        assert (function.given.value, function.seen.value) == (i + 10, [i])


def test_lists_are_dealt_out_anew() -> None:
    parts = [saved(Parts(), i, 3, parts=[f"{i}{c}" for c in "abc"]) for i in range(3)]
    got = []
    for i in range(2):
        function = Parts()
        OperatorStates(function, where(i, 2)).restore(list(reversed(parts)))
        got.append(function.parts.value)
    assert got == [["0a", "0b", "0c", "1a"], ["1b", "1c", "2a", "2b", "2c"]]


def dealt(parts: list[MetaPart], parallelism: int, over: bool = False) -> list[Any]:
    got = []
    for i in range(parallelism):
        function = Parts()
        OperatorStates(function, where(i, parallelism)).restore(parts, over)
        got.append(function.parts.value)
    return got


@pytest.mark.parametrize("parallelism", [1, 3, 4])
def test_what_a_finished_subtask_held_is_not_dealt_out_to_those_that_go_on(parallelism: int) -> None:
    parts = [saved(Parts(), i, 2, parts=[f"{i}a", f"{i}b"], finished=i == 0) for i in range(2)]
    assert [item for share in dealt(parts, parallelism) for item in share] == ["1a", "1b"]


def test_one_that_goes_on_and_holds_nothing_is_one_that_goes_on() -> None:
    parts = [saved(Parts(), 0, 2, parts=["0a"], finished=True), saved(Parts(), 1, 2)]
    assert parts[1].data is None
    assert dealt(parts, 3) == [[], [], []]


@pytest.mark.parametrize("over", [True, False])
def test_once_all_have_finished_all_lists_are_dealt_out(over: bool) -> None:
    """The lists were dropped: a dataflow that fed the operator anew, at another parallelism, found nothing, without a
    word."""
    parts = [saved(Parts(), i, 2, parts=[f"{i}a", f"{i}b"], finished=True) for i in range(2)]
    assert dealt(parts, 3, over) == [["0a"], ["0b"], ["1a", "1b"]]


def test_what_is_no_list_may_stay_behind_where_the_operator_is_over() -> None:
    """The job only publishes and finishes; it is fed anew that needs the state."""
    parts = [saved(Numbering(), i, 2, given=i, seen=[i], finished=True) for i in range(2)]
    function = Numbering()
    OperatorStates(function, where(0, 1)).restore(parts, over=True)
    assert (function.given.value, function.seen.value) == (0, [0, 1])
    with pytest.raises(IncompatibleState, match=r"'given' \(int\) was saved at parallelism 2.*keep parallelism=2"):
        OperatorStates(Numbering(), where(0, 1)).restore(parts)


def test_anything_else_needs_the_same_parallelism() -> None:
    parts = [saved(Numbering(), i, 2, given=i) for i in range(2)]
    with pytest.raises(IncompatibleState, match=r"'given' \(int\) was saved at parallelism 2.*keep parallelism=2"):
        OperatorStates(Numbering(), where(0, 3)).restore(parts)


def test_a_state_that_is_gone_is_reported() -> None:
    with pytest.raises(IncompatibleState, match="holds operator state 'given', which is not declared"):
        OperatorStates(Parts(), where()).restore([saved(Numbering(), 0, 1, given=3)])


def test_a_value_that_cannot_be_saved_is_reported() -> None:
    with pytest.raises(UserCodeError, match="operator state 'given' cannot be saved"):
        saved(Numbering(), 0, 1, given=lambda: None)


def test_nothing_is_saved_where_nothing_is() -> None:
    assert OperatorStates(Numbering(), where()).snapshot() is None
