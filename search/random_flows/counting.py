"""Additions to some random flows: windows of so many records or of all, and joins of changes. Generators of their own keep
all other draws of a seed as they were."""

from __future__ import annotations

import random
from dataclasses import replace

from search.random_flows.description import Do, Flow


def keeping(rng: random.Random, flow: Flow) -> Flow:
    """The flow with windows of all records, or a join of changes, outside of loops: parts of results add up to what they are
    at the end of the input. Where there is no such end, or records are merged in loops, the flow stays as it is."""
    if flow.endless or any(loop.combine for loop in flow.loops()):
        return flow
    number = rng.randint(0, 23) + 1 + max((step.number for step in flow.all()), default=0)
    made = Do(rng.choice(["whole", "changes joined"]), number, parallelism=rng.choice([None, None, 1, 3]))
    at = rng.randint(0, len(flow.steps))
    return replace(flow, steps=(*flow.steps[:at], made, *flow.steps[at:]))


def numbering(rng: random.Random, flow: Flow) -> Flow:
    """The flow with windows of so many records, outside of loops: in them no window is over at the end of the input. Where
    there is no such end, or records are merged in loops, the flow stays as it is."""
    if flow.endless or any(loop.combine for loop in flow.loops()):
        return flow
    number = 1 + max((step.number for step in flow.all()), default=0)
    made = Do("counted", number, parallelism=rng.choice([None, None, 1, 3]))
    at = rng.randint(0, len(flow.steps))
    return replace(flow, steps=(*flow.steps[:at], made, *flow.steps[at:]))
