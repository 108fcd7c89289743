"""An addition to some random flows: rounds by spans of event time. A generator of its own keeps all other draws of a seed as
they were."""

from __future__ import annotations

import random
from dataclasses import replace

from search.random_flows.description import Do, Flow, Fork, Kind, Loop, Step
from search.random_flows.ordering import has_one_time

BY_THE_SECOND = frozenset(
    (
        *("held", "times", "lived", "last of each", "in order", "both in order", "ruled in order", "fired"),
        *("fired of columns", "sessions", "sessions of columns", "distinct within", "lists of columns"),
        *("interval join", "interval join of columns", "window join", "window join of columns"),
        *("version join", "version join of columns", "session join of columns"),
    )
)
"""Kinds of operators for which it matters how far two records are apart. Those of a span have the time of its last
microsecond, and others whole seconds."""
_INSIDE: tuple[Kind, ...] = ("map", "count", "bags", "to the round's end", "to the round's end")


def by_spans(rng: random.Random, flow: Flow) -> Flow:
    """The flow with a loop in rounds that goes by spans, if it has one in rounds, and outside of it each record has one
    time. The loop has another body, of operators that begin each span without state."""
    loops = [at for at, step in enumerate(flow.steps) if isinstance(step, Loop) and step.rounds is not None]
    if not loops:
        return flow
    at, number = rng.choice(loops), 1 + max(step.number for step in flow.all())
    loop = flow.steps[at]
    assert isinstance(loop, Loop)
    outside = replace(flow, steps=(*flow.steps[:at], *flow.steps[at + 1 :]))
    if not has_one_time(outside) or BY_THE_SECOND & {step.kind for step in outside.operators()}:
        return flow
    if any(events.stamped_inside or events.endless for events in flow.sources()):
        return flow
    widths = (None, None, 1, 3)
    body: list[Step] = [
        Do(rng.choice(_INSIDE), number + i, rng.choice(["forward", "rebalance", "shuffle"]), rng.choice(widths))
        for i in range(rng.choice([1, 2, 3]))
    ]
    if rng.random() < 0.2:
        body.append(Fork(number + len(body), (Do("count", number + len(body) + 1),), ()))
    feedback = "plain" if loop.feedback in ("columns", "broadcast", "mixed") else loop.feedback
    loop = replace(
        loop, body=tuple(body), feedback=feedback, combine=False, astray=False, span=rng.choice([8, 8, 16, 24])
    )
    return replace(flow, steps=(*flow.steps[:at], loop, *flow.steps[at + 1 :]))
