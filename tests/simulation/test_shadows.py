"""Whatever a worker has done since a checkpoint, a fresh one that is restored from it can do again, with what the worker has
remembered of it and what the others have kept: the same records on the same channels in the same order, the same state. A
standby that takes the place of a lost worker is such a one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from search.campaigns.replacements import past_what_waits
from search.campaigns.unaligned import closely, rescaled_run
from search.programs.golden import PROGRAMS
from search.random_flows.drawing import draw
from search.random_flows.remembering import remembering
from search.random_flows.running import carry_out
from search.scenarios import Scenario, run_scenario, scenario
from search.watchers.shadows import Shadows
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.testing.faults import Fault

pytestmark = pytest.mark.search


def looked_at(seeds: range, run: Any, every: int) -> list[Shadows]:
    """Runs these seeds with shadows, and gives those; nothing has gone wrong."""
    all_of_them = []
    for seed in seeds:
        shadows = Shadows(seed, every)
        assert run(seed, shadows) == []
        all_of_them.append(shadows)
    return all_of_them


@pytest.mark.parametrize("program", sorted(name for name, program in PROGRAMS.items() if program.replaced))
def test_what_a_worker_of_a_golden_program_has_done_can_be_done_again(program: str) -> None:
    seeds = range(1)  # those of the searches are many more
    found = looked_at(seeds, lambda seed, shadows: run_scenario(scenario(seed, program), shadows=shadows).wrong, 300)
    assert sum(shadows.compared for shadows in found) > 0


def test_what_a_worker_of_a_random_dataflow_has_done_can_be_done_again() -> None:
    found = looked_at(range(8), lambda seed, shadows: carry_out(draw(seed), shadows=shadows).wrong, 200)
    assert sum(shadows.compared for shadows in found) > 20
    assert sum(shadows.restored for shadows in found) > 10, "most of them from a checkpoint"
    assert sum(shadows.entries for shadows in found) > 1_000


def test_what_it_goes_through_has_the_order_that_it_had() -> None:
    """Sets in state, timers for one time, splits that were found or listed."""

    def remembered(seed: int, shadows: Shadows) -> list[str]:
        run = draw(seed)
        run = replace(run, flow=remembering(random.Random(seed), run.flow))
        return carry_out(run, shadows=shadows).wrong

    found = looked_at(range(6), remembered, 150)
    assert sum(shadows.restored for shadows in found) > 10


def behind(seed: int, shadows: Shadows) -> list[str]:
    """A join in the narrowest channels, whose checkpoints overtake at once, and of which a worker is lost."""
    settings = CheckpointSettings(interval=500, overtakes_after=0, tolerated_failures=1_000, max_concurrent=2)
    lost = Fault(12, "kill", which=0, after="commit 2 done"), Fault(90, "kill", which=0, after="restart 1")
    n = PROGRAMS["joined"].n
    made = Scenario(seed, "joined", n, 2, 16, "in small steps", None, settings, ("fixed", 0), 1, faults=lost)
    return run_scenario(made, shadows=shadows).wrong


def test_what_was_in_flight_at_the_restored_checkpoint_is_where_it_was() -> None:
    """What barriers have overtaken is in the channels in which it was, in the same frames: also that which an earlier
    checkpoint had brought back, of which the most is still in its file."""
    found = looked_at(range(4, 6), behind, 30)
    assert sum(shadows.in_flight for shadows in found) > 150 and found[1].came_back > 30


def test_in_loops_the_markers_of_waves_that_were_in_flight_are_where_they_were() -> None:
    run = closely(rescaled_run(draw(7)))
    (shadows,) = looked_at(range(7, 8), lambda seed, shadows: carry_out(run, shadows=shadows).wrong, 120)
    assert run.flow.loops() and shadows.in_flight > 10


def test_a_worker_that_has_taken_a_lost_ones_place_can_be_replaced_itself() -> None:
    found = looked_at(
        range(4, 6), lambda seed, shadows: run_scenario(past_what_waits(scenario(seed)), shadows=shadows).wrong, 100
    )
    assert sum(shadows.compared for shadows in found) > 40
