"""Unaligned checkpoints from outside: jobs that are behind, fail and go on at another parallelism.

What others have of this: of a single task and of the workers of a job without a coordinator `tests/task/test_overtaking.py`
(caps, time-outs, several at once, aborted), `test_returning.py` (event time, changed chains) and `test_written.py`; random
flows and golden programs `test_overtaking.py` beside this; loops that are killed while they read what was restored, and a
thousand times as much on its way around, `test_loop_faults.py` and `test_loop_flow.py`; processes that are killed
`tests/spark/test_unaligned.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.simulation.behind import FLOWS, NARROW, POLICIES, SETTINGS, from_before, until_behind

from tailrace.testing.stories import Story

# Other sizes, again and again.

LIVES = [(2, 3, 2), (3, 1, 2), (1, 3, 2), (2, 2, 3, 1)]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("flow", sorted(FLOWS))
def test_a_job_goes_on_at_other_sizes_before_it_has_read_what_was_in_flight(
    story: Story, flow: str, policy: str
) -> None:
    """A2: each life but the last one is left at a checkpoint with records in flight; of those in between, some had been in
    flight at the one before, too."""
    twice = 0
    for seed, sizes in enumerate(LIVES):
        twice += _lives(Story.begin(story.ledger.name), flow, policy, sizes, seed)
    assert twice, "some job was left twice before it had read what was in flight"


def _lives(story: Story, flow: str, policy: str, sizes: tuple[int, ...], seed: int) -> int:
    """How many records two checkpoints in a row had in flight, both of which a job went on from."""
    made, twice = FLOWS[flow], 0
    for life, size in enumerate(sizes):
        start = story.again if life else story.simulation
        world = start(
            lambda env, life=life: made.build(env, life),
            parallelism=size,
            seed=10 * seed + life,
            checkpoints=replace(SETTINGS, **POLICIES[policy]),
            **NARROW,
        )
        if life < len(sizes) - 1:
            until_behind(story, world)
            twice += from_before(story)
    story.finished(world)
    story.is_right(made.expected, made.order)
    return twice
