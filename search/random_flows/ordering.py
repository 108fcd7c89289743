"""Additions to some random flows: functions that are called in the order of event time, on one stream or on two. A generator
of their own keeps all other draws of a seed as they were."""

from __future__ import annotations

import random
from dataclasses import replace

from search.random_flows.description import Do, Flow, Kind

NO_ONE_TIME = frozenset({"later", "join", "hoard", "last call", "at the end", "drawn"})
"""Kinds of operators behind which the time of a record depends on the run."""


def ordering(rng: random.Random, flow: Flow) -> Flow:
    """The flow with one or two of these operators outside of its loops, where each record has one time in all runs."""
    if not _has_one_time(flow):
        return flow
    number = 1 + max((step.number for step in flow.all()), default=0)
    for i in range(rng.choice([1, 1, 2])):
        kind: Kind = rng.choice(["in order", "in order", "both in order"])
        made = Do(kind, number + i, parallelism=rng.choice([None, None, 1, 3]))
        at = rng.randint(0, len(flow.steps))
        flow = replace(flow, steps=(*flow.steps[:at], made, *flow.steps[at:]))
    return flow


def _has_one_time(flow: Flow) -> bool:
    """True where the time of each record is the same in all runs, and none comes when event time has ended before."""
    merged = any(loop.combine for loop in flow.loops())
    return (
        not NO_ONE_TIME & {step.kind for step in flow.operators()}
        and not any(step.phases for step in flow.operators() if step.kind == "more")
        and all(events.timed and not (merged and events.distinct < events.n) for events in flow.sources())
    )
