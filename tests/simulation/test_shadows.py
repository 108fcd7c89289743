"""Whatever a worker has done since a checkpoint, a fresh one that is restored from it can do again, with what the worker has
remembered of it and what the others have kept: the same records on the same channels in the same order, the same state. A
standby that takes the place of a lost worker is such a one."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.testing.overtaking import closely, overtaking, rescaled_run
from tailrace.testing.programs import PROGRAMS
from tailrace.testing.random_flows.drawing import drawn
from tailrace.testing.random_flows.running import carry_out
from tailrace.testing.replacing import past_what_waits
from tailrace.testing.scenarios import run_scenario, scenario
from tailrace.testing.shadows import Shadows

pytestmark = pytest.mark.search


def looked_at(seeds: range, run: Any, every: int) -> list[Shadows]:
    """Runs these seeds with shadows, and gives those; nothing has gone wrong."""
    all_of_them = []
    for seed in seeds:
        shadows = Shadows(seed, every)
        assert run(seed, shadows) == []
        all_of_them.append(shadows)
    return all_of_them


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_what_a_worker_of_a_golden_program_has_done_can_be_done_again(program: str) -> None:
    seeds = range(1)  # those of the searches are many more
    found = looked_at(seeds, lambda seed, shadows: run_scenario(scenario(seed, program), shadows=shadows).wrong, 300)
    assert sum(shadows.compared for shadows in found) > 0


def test_what_a_worker_of_a_random_dataflow_has_done_can_be_done_again() -> None:
    found = looked_at(range(8), lambda seed, shadows: carry_out(drawn(seed), shadows=shadows).wrong, 200)
    assert sum(shadows.compared for shadows in found) > 20
    assert sum(shadows.restored for shadows in found) > 10, "most of them from a checkpoint"
    assert sum(shadows.entries for shadows in found) > 1_000


def test_what_was_in_flight_at_the_restored_checkpoint_is_where_it_was() -> None:
    """What barriers have overtaken is in the channels in which it was, in the same frames, with the markers of waves: also
    that which an earlier checkpoint had brought back."""
    found = looked_at(
        range(6), lambda seed, shadows: run_scenario(overtaking(scenario(seed)), shadows=shadows).wrong, 150
    )
    assert sum(shadows.in_flight for shadows in found) > 10
    found = looked_at(
        range(6, 8), lambda seed, shadows: carry_out(closely(rescaled_run(drawn(seed))), shadows=shadows).wrong, 200
    )
    assert sum(shadows.came_back for shadows in found) > 5


def test_a_worker_that_has_taken_a_lost_ones_place_can_be_replaced_itself() -> None:
    found = looked_at(
        range(3, 8), lambda seed, shadows: run_scenario(past_what_waits(scenario(seed)), shadows=shadows).wrong, 100
    )
    assert sum(shadows.in_flight for shadows in found) > 10
