"""An addition to some random flows: broadcast state. A generator of its own keeps all other draws of a seed as they were."""

from __future__ import annotations

import random
from dataclasses import replace

from search.random_flows.description import Do, Flow, Loop
from search.random_flows.ordering import has_one_time


def ruling(rng: random.Random, flow: Flow) -> Flow:
    """The flow with an operator to which some of its records are broadcast, maybe in a loop, or in the order of time.
    Where records are merged in loops the flow stays as it is."""
    if any(loop.combine for loop in flow.loops()):
        return flow
    number = 1 + max((step.number for step in flow.all()), default=0)
    made = Do("ruled", number, parallelism=rng.choice([None, None, 1, 3]))
    held = any(step.kind == "held" for step in flow.operators())  # for fractions that the interpreter does not know
    silent = any(events.falls_silent for events in flow.sources())
    if rng.random() < 0.4 and has_one_time(flow) and not silent and not held:
        at = rng.randint(0, len(flow.steps))
        return replace(flow, steps=(*flow.steps[:at], replace(made, kind="ruled in order"), *flow.steps[at:]))
    loops = [at for at, step in enumerate(flow.steps) if isinstance(step, Loop) and step.rounds is None]
    if loops and rng.random() < 0.5:
        at = rng.choice(loops)
        loop = flow.steps[at]
        assert isinstance(loop, Loop)
        inside = rng.randint(0, len(loop.body))
        loop = replace(loop, body=(*loop.body[:inside], made, *loop.body[inside:]))
        return replace(flow, steps=(*flow.steps[:at], loop, *flow.steps[at + 1 :]))
    at = rng.randint(0, len(flow.steps))
    return replace(flow, steps=(*flow.steps[:at], made, *flow.steps[at:]))
