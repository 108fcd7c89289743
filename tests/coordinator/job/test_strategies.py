"""Whether a job that failed is started again, and after which pause."""

from __future__ import annotations

import pytest

from tailrace.api.config import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from tailrace.coordinator.job.restarts import Exponential, Fixed, Never, Rate, Strategy
from tailrace.runtime.driver.machine_settings import strategy_of

S = 1_000_000


def pauses(strategy: Strategy, *failures: float) -> list[float | None]:
    """What follows from failures at these seconds."""
    found = [strategy.delay(int(at * S)) for at in failures]
    return [None if one is None else one / S for one in found]


def test_never_is_never() -> None:
    assert pauses(Never(), 1, 1000) == [None, None]


def test_fixed_counts_over_the_life_of_the_job() -> None:
    assert pauses(Fixed(2, 5 * S), 1, 1_000_000, 2_000_000) == [5, 5, None]
    assert pauses(Fixed(0, 5 * S), 1) == [None]


def test_exponential_grows_up_to_its_maximum() -> None:
    assert pauses(Exponential(S, 5 * S, 2.0, 3600 * S), *range(5)) == [1, 2, 4, 5, 5]


def test_exponential_begins_again_after_a_time_without_a_failure() -> None:
    strategy = Exponential(S, 60 * S, 3.0, 100 * S)
    assert pauses(strategy, 0, 50, 149, 249) == [1, 3, 9, 1]


def test_exponential_may_give_up_and_a_quiet_time_forgives() -> None:
    strategy = Exponential(S, 60 * S, 2.0, 100 * S, attempts=2)
    assert pauses(strategy, 0, 1, 2) == [1, 2, None]
    assert pauses(Exponential(S, 60 * S, 2.0, 100 * S, attempts=2), 0, 1, 101, 102) == [1, 2, 1, 2]


def test_a_rate_forgets_what_is_long_ago() -> None:
    strategy = Rate(2, 10 * S, S)
    assert pauses(strategy, 0, 9, 10.1, 19.5, 20) == [1, 1, 1, 1, None]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (NoRestart(), Never()),
        (FixedDelay(2, 0.5), Fixed(2, S // 2)),
        (ExponentialDelay(1, 10, 3, 60, 7), Exponential(S, 10 * S, 3.0, 60 * S, 7)),
        (FailureRate(2, 60, 0.1), Rate(2, 60 * S, S // 10)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_a_user_says_is_meant(given: object, meant: Strategy) -> None:
    assert strategy_of(given) == meant
