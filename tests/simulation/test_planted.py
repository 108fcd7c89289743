"""The search proves itself: of each of these bugs it finds that something is wrong, in few seeds."""

import pytest

from tailrace.testing.planted import BUGS, planted
from tailrace.testing.search import search

SEEDS = 60


@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_is_found(name: str) -> None:
    with planted(name):
        _, failed = search(range(SEEDS), BUGS[name].program, tune=BUGS[name].tune)
    assert failed, f"{SEEDS} seeds show nothing wrong"


def test_a_bug_is_gone_when_it_was_looked_for() -> None:
    for name in BUGS:
        with planted(name):
            pass
    _, failed = search(range(3), "counted")
    assert not failed
