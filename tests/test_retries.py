"""Requests that are made again: how often, for how long, and with which pauses."""

from __future__ import annotations

import ast
import itertools
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace
from tailrace.retries import Retries


class Clock:
    """A clock that goes on where somebody sleeps, or while a request is under way."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def never(clock: Clock, seconds: float = 0.0) -> tuple[Callable[[], None], list[float]]:
    """A request that fails after some seconds, and the times at which it was made."""
    made: list[float] = []

    def request() -> None:
        made.append(clock.now)
        clock.now += seconds
        raise OSError(f"try {len(made)}")

    return request, made


def is_outage(error: Exception) -> bool:
    return isinstance(error, OSError)


def test_pauses_double_up_to_a_limit_and_the_last_try_is_at_the_deadline() -> None:
    clock = Clock()
    request, made = never(clock)
    with pytest.raises(OSError, match="try 7"):
        Retries(20.0, first=1.0, most=5.0, clock=lambda: clock.now, chance=lambda: 0.0).call(
            request, is_outage, clock.sleep
        )
    assert clock.pauses == [1, 2, 4, 5, 5, 3] and made[-1] == 20


@given(st.integers(0, 99), st.floats(0.01, 600), st.floats(0.0, 30), st.integers(1, 9) | st.none())
def test_no_try_begins_behind_the_deadline_and_there_are_not_too_many(
    seed: int, within: float, seconds: float, tries: int | None
) -> None:
    clock, chance = Clock(), random.Random(seed).random
    request, made = never(clock, seconds)
    retries = Retries(within, tries, clock=lambda: clock.now, chance=chance)
    with pytest.raises(OSError, match=r"try \d+"):
        retries.call(request, is_outage, clock.sleep)
    assert max(made) <= within + 1e-9
    assert len(made) == tries or clock.now >= within - 1e-9
    whole = [min(0.1 * 2**n, 10.0) for n in range(len(clock.pauses))]
    assert all(pause <= longest + 1e-9 for pause, longest in zip(clock.pauses, whole, strict=True))
    assert all(pause >= longest / 2 - 1e-9 for pause, longest in zip(clock.pauses[:-1], whole, strict=False))


def test_those_that_failed_together_do_not_come_back_together() -> None:
    def pauses() -> tuple[float, ...]:
        clock = Clock()
        with pytest.raises(OSError):
            Retries(60.0, 5, clock=lambda: clock.now).call(never(clock)[0], is_outage, clock.sleep)
        return tuple(clock.pauses)

    assert len({pauses() for _ in range(20)}) == 20


def test_the_users_chance_is_left_alone() -> None:
    random.seed(7)
    before = random.getstate()
    with pytest.raises(OSError):
        Retries(60.0, 5).call(never(Clock())[0], is_outage, lambda seconds: None)
    assert random.getstate() == before


def test_a_request_that_succeeds_is_made_no_more() -> None:
    answers = itertools.chain([OSError(), OSError(), 7], itertools.repeat(8))

    def request() -> object:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert Retries(60.0).call(request, is_outage, lambda seconds: None) == 7


def test_an_error_that_does_not_pass_is_raised_at_once() -> None:
    made = []

    def request() -> None:
        made.append(1)
        raise ValueError

    with pytest.raises(ValueError):
        Retries(60.0).call(request, is_outage, lambda seconds: None)
    assert made == [1]


def test_limits_travel_with_the_task_that_keeps_to_them() -> None:
    assert pickle.loads(pickle.dumps(Retries(60.0, 2))) == Retries(60.0, 2)


def test_one_that_is_woken_tries_once_more() -> None:
    clock = Clock()
    request, made = never(clock)
    with pytest.raises(OSError):
        Retries(60.0, clock=lambda: clock.now).call(request, is_outage, lambda seconds: True)
    assert len(made) == 2


def test_nobody_else_sleeps_between_tries() -> None:
    """A loop that sleeps in the handler of an error, or behind it, is one of retries, and there is one for all. An attempt
    of an asynchronous call that waits in an event loop holds up nobody."""
    found = []
    for file in Path(tailrace.__file__).parent.rglob("*.py"):
        for loop in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(loop, ast.For | ast.While):
                inside = [node for one in loop.body for node in ast.walk(one)]
                called = [ast.unparse(one.func) for one in inside if isinstance(one, ast.Call)]
                sleeps = any(name.endswith("sleep") and name != "asyncio.sleep" for name in called)
                tries = any(isinstance(one, ast.Try) for one in inside)
                if sleeps and tries:
                    found.append(file.name)
    assert found == ["retries.py"]
