"""Generators of random numbers that all code of a process shares: they are seeded, and it is seen whether they were used."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from tailrace.runtime.worker.random_state import SharedGenerators


@pytest.fixture(autouse=True)
def _left_alone() -> object:
    """Whoever else has seeded them."""
    state = random.getstate(), np.random.get_state()
    yield
    random.setstate(state[0])
    np.random.set_state(state[1])


def test_the_same_seed_gives_the_same_numbers() -> None:
    shared = SharedGenerators()
    given = []
    for _ in range(2):
        shared.seed(1_700_000_000_000_007)
        given.append((random.random(), random.gauss(0, 1), np.random.random(), np.random.randint(1_000)))
    assert given[0] == given[1]
    shared.seed(1_700_000_000_000_008)
    assert random.random() != given[0][0]
    random.seed(1_700_000_000_000_007)
    assert random.random() == given[0][0], "what the module's own seed gives"


def test_a_step_has_numbers_that_no_step_before_had_and_that_follow_from_its_seed() -> None:
    shared, given, seeds = SharedGenerators(), list[float](), list[int | None]()
    for number in range(20):
        shared.begin_step(1_000 + number)
        if number % 3 == 2:
            given.append(random.random() + np.random.random())
        seeds.append(shared.end_step())
    assert [number for number, seed in enumerate(seeds) if seed is not None] == [2, 5, 8, 11, 14, 17]
    assert len(set(given)) == len(given)
    for seed, before in zip(filter(None, seeds), given, strict=True):
        shared.seed(seed)
        assert random.random() + np.random.random() == before, "a replay seeds them with it"


def test_generators_that_no_step_has_used_are_not_seeded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, seeds = SharedGenerators(), list[int]()
    seed = shared.seed
    monkeypatch.setattr(shared, "seed", lambda number: seeds.append(number) or seed(number))
    for number in range(9):
        shared.begin_step(number)
        shared.end_step()
    assert seeds == [0]


@pytest.mark.parametrize("between", [random.random, np.random.random, lambda: SharedGenerators().seed(7)])
def test_what_happens_between_two_steps_does_not_change_what_a_step_gets(between: Callable[[], object]) -> None:
    given = []
    for disturbed in (False, True):
        shared = SharedGenerators()
        for number in range(4):
            shared.begin_step(number)
            if number == 3:
                given.append((random.random(), np.random.random()))
            assert shared.end_step() == (0 if number == 3 else None)
            if disturbed:
                between()
    assert given[0] == given[1]


@pytest.mark.parametrize(
    "use",
    [
        random.random,
        lambda: random.shuffle([1, 2]),
        lambda: random.gauss(0, 1),
        lambda: random.seed(4),
        lambda: [random.getrandbits(32) for _ in range(624)],
        np.random.random,
        lambda: np.random.seed(4),
        lambda: np.random.normal(size=3),
        lambda: [np.random.randint(1 << 31) for _ in range(624)],
    ],
)
def test_it_is_seen_whether_they_were_used(use: Callable[[], object]) -> None:
    shared = SharedGenerators()
    for seed in range(50):
        shared.seed(seed * 7_919)
        assert not shared.was_used()
        use()
        assert shared.was_used()


def test_where_numpy_has_another_generator_it_is_taken_for_used() -> None:
    shared = SharedGenerators()
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.MT19937(3))
        shared.seed(5)
        assert shared.was_used()
    finally:
        np.random.set_bit_generator(before)
    shared.seed(5)
    assert not shared.was_used()


def test_what_cannot_be_seen_is_taken_for_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.implementation.name", "another")
    shared = SharedGenerators()
    shared.seed(5)
    assert shared.was_used()
