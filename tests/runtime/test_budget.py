"""How many records a step may take: enough to be worth it, and few enough to be back soon."""

from __future__ import annotations

import pytest

from tailrace.runtime.budget import CEILING_NANOS, MAX_BUDGET, TARGET_NANOS, Budget

US, MS = 1_000, 1_000_000


def settled(fixed: int, each: int, disturbed: int = 0) -> tuple[int, int]:
    """The budget, and how long a step then takes, where a step costs `fixed` and `each` for a record (nanoseconds). Every
    tenth step takes `disturbed` longer."""
    budget = Budget()
    for step in range(500):
        budget.learn(budget.records, fixed + each * budget.records + (disturbed if step % 10 == 0 else 0))
    return budget.records, fixed + each * budget.records


def test_cheap_records_fill_a_step_of_the_target() -> None:
    records, nanos = settled(0, 500)
    assert records == 2_000 and nanos == TARGET_NANOS
    assert settled(0, 1)[0] == MAX_BUDGET


@pytest.mark.parametrize("fixed", [100 * US, 500 * US, 1 * MS, 2 * MS, 3 * MS])
def test_what_a_step_costs_at_any_rate_does_not_drive_the_budget_to_nothing(fixed: int) -> None:
    # A step that needs a millisecond whatever it takes used to be given one record, and so needed one for each record.
    records, nanos = settled(fixed, 10 * US)
    assert records >= 150
    assert nanos <= CEILING_NANOS


def test_other_work_on_the_machine_does_not_either() -> None:
    records, nanos = settled(1 * MS, 10 * US, disturbed=20 * MS)
    assert records >= 64
    assert nanos <= CEILING_NANOS


@pytest.mark.parametrize("each", [100 * US, 1 * MS, 3 * MS])
def test_slow_records_come_in_small_steps(each: int) -> None:
    records, nanos = settled(0, each)
    assert records >= 1 and nanos <= CEILING_NANOS


def test_a_record_that_takes_long_is_alone() -> None:
    assert settled(0, 100 * MS)[0] == 1


def test_a_step_above_the_ceiling_halves_the_budget_at_once() -> None:
    budget = Budget()
    for _ in range(100):
        budget.learn(budget.records, 500 * budget.records)
    before = budget.records
    budget.learn(before, 11 * MS)
    assert budget.records <= before // 2
