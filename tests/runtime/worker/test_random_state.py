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
