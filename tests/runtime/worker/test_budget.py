"""How many records a step may take: enough to be worth it, and few enough to be back soon."""

from __future__ import annotations

import pytest

from tailrace.runtime.worker.budget import AMORTIZED, CEILING_NANOS, FIRST_READ, MAX_BUDGET, TARGET_NANOS, Budget

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


@pytest.mark.parametrize("fixed", [100 * US, 500 * US, 1 * MS, 3 * MS, 5 * MS, 20 * MS])
def test_what_a_step_costs_whatever_it_takes_does_not_drive_the_budget_to_nothing(fixed: int) -> None:
    """A step that needs milliseconds for its first call into Arrow was taken for one with slow records, was given fewer of
    them, and one at last: each record then cost the milliseconds."""
    records, nanos = settled(fixed, 10 * US)
    assert 10 * US * records >= 0.9 * min(AMORTIZED * fixed, CEILING_NANOS / 2)
    assert nanos <= fixed + CEILING_NANOS / 2


@pytest.mark.parametrize("fixed", [0, 1 * MS, 3 * MS])
def test_other_work_on_the_machine_does_not_either(fixed: int) -> None:
    records, nanos = settled(fixed, 10 * US, disturbed=20 * MS)
    assert records >= 64
    assert nanos <= 1.5 * CEILING_NANOS


@pytest.mark.parametrize("each", [100 * US, 1 * MS, 3 * MS])
def test_slow_records_come_in_small_steps(each: int) -> None:
    records, nanos = settled(0, each)
    assert records >= 1 and nanos <= CEILING_NANOS


def test_a_record_that_takes_long_is_alone() -> None:
    assert settled(0, 100 * MS)[0] == 1


def test_a_step_above_the_ceiling_makes_the_next_one_smaller_at_once() -> None:
    budget = Budget()
    for _ in range(100):
        budget.learn(budget.records, 500 * budget.records)
    before = budget.records
    budget.learn(before, 11 * MS)
    assert budget.records < 0.6 * before


@pytest.mark.parametrize("fixed", [0, 100 * US, 3 * MS, 5 * MS])
def test_the_first_step_of_a_task_which_pays_for_what_is_done_once_tells_nothing(fixed: int) -> None:
    budget = Budget()
    budget.learn(budget.records, 300 * MS)
    for _ in range(50):
        budget.learn(budget.records, fixed + US * budget.records)
    assert budget.records >= 900


@pytest.mark.parametrize("later", [1 * MS, 10 * MS])
def test_records_that_become_slow_take_long_in_few_steps_only(later: int) -> None:
    """The one step that took seconds was remembered for a hundred steps as what a step costs whatever it takes."""
    budget = Budget()
    for _ in range(100):
        budget.learn(budget.records, 100 * budget.records)
    took = []
    for _ in range(200):
        took.append(later * budget.records)
        budget.learn(budget.records, took[-1])
    assert sum(nanos > 2 * CEILING_NANOS for nanos in took) <= 3


def test_the_first_records_of_a_source_come_alone_and_many_of_them_soon() -> None:
    """64 records of 50 MB, which a source made in its first step, were 3 GB in each of its subtasks."""
    budget = Budget(first=FIRST_READ)
    assert budget.records == 1
    budget.learn(1, 30 * MS)
    budget.learn(budget.records, budget.records * 30 * MS)
    assert budget.records == 1
    budget, steps = Budget(first=FIRST_READ), 0
    while budget.records < 1000:
        budget.learn(budget.records, 200 * US + budget.records * US // 2)
        steps += 1
    assert steps <= 8


def test_a_trickle_of_records_gives_no_large_step_for_what_comes_behind_it() -> None:
    """One record at a time does not show how long a thousand would take."""
    budget = Budget()
    for _ in range(500):
        budget.learn(1, 50 * US)
    assert budget.records <= 32
