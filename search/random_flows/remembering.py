"""Additions to some random flows: operators that show in which order a worker walks what it has, an operator that does
something else when it is repeated, and sources whose splits depend on the world outside. A generator of their own keeps all
other draws of a seed as they were."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from search.random_flows.description import Do, Events, Flow, Kind, Loop, Step, change_steps


def remembering(rng: random.Random, flow: Flow) -> Flow:
    """The flow with one or two of these operators, and with these sources."""
    numbers = itertools.count(1 + max((step.number for step in flow.all()), default=0))
    for _ in range(rng.choice([1, 1, 2])):
        kind: Kind = rng.choice(["sets", "sets in flight", "ties"]) if not flow.endless else "sets"
        made = Do(kind, next(numbers), parallelism=rng.choice([None, None, 1, 3]))
        flow = _with(rng, flow, made, [loop for loop in flow.loops() if kind != "ties" or not loop.rounds])
    return _of_the_world(rng, flow)


def drawing(rng: random.Random, flow: Flow) -> Flow:
    """The flow with an operator that does something else when it is repeated."""
    number = 1 + max((step.number for step in flow.all()), default=0)
    made = Do("drawn", number, parallelism=rng.choice([None, None, 1, 3]))
    return _with(rng, flow, made, [loop for loop in flow.loops() if not loop.rounds])


def reading(rng: random.Random, flow: Flow) -> Flow:
    """The flow with an operator whose function reads a clock, or draws at random, for two readers."""
    number = 1 + max((step.number for step in flow.all()), default=0)
    made = Do("readings", number, parallelism=rng.choice([None, None, 1, 3]))
    return _with(rng, flow, made, list(flow.loops()))


def gathering(rng: random.Random, flow: Flow) -> Flow:
    """The flow with an operator whose function sees which records come together."""
    number = rng.randint(1, 2) + max((step.number for step in flow.all()), default=0)
    made = Do("together", number, parallelism=rng.choice([None, None, 1, 3]))
    return _with(rng, flow, made, [loop for loop in flow.loops() if not loop.rounds])


def failing(rng: random.Random, flow: Flow) -> Flow:
    """The flow with an operator whose functions raise for some records, which go aside."""
    number = rng.randint(0, 2) + 1 + max((step.number for step in flow.all()), default=0)
    made = Do("failing", number, parallelism=rng.choice([None, None, 1, 3]))
    return _with(rng, flow, made, list(flow.loops()))


def grouping(rng: random.Random, flow: Flow) -> Flow:
    """The flow with sessions, outside of loops: in them no session is ever over. Where a source may count as silent while
    its readers have nothing, its records may be late for sessions: such a flow stays as it is."""
    sources = [flow.source, *(step.events for step in flow.operators() if step.events is not None)]
    if any(one.falls_silent and one.pauses for one in sources):
        return flow
    number = 1 + max((step.number for step in flow.all()), default=0)
    kind: Kind = rng.choice(["sessions", "sessions of columns"])
    return _with(rng, flow, Do(kind, number, parallelism=rng.choice([None, None, 1, 3])), [])


def firing(rng: random.Random, flow: Flow) -> Flow:
    """The flow with windows that fire early and late, outside of loops."""
    number = 1 + max((step.number for step in flow.all()), default=0)
    kind: Kind = rng.choice(["fired", "fired of columns"])
    return _with(rng, flow, Do(kind, number, parallelism=rng.choice([None, None, 1, 3])), [])


def _with(rng: random.Random, flow: Flow, made: Do, loops: list[Loop]) -> Flow:
    """The flow with one more operator, outside of loops or in one of these."""
    if loops and rng.random() < 0.4:
        return replace(flow, steps=change_steps(flow.steps, _into(rng.choice(loops), made)))
    at = rng.randint(0, len(flow.steps))
    return replace(flow, steps=(*flow.steps[:at], made, *flow.steps[at:]))


def _into(loop: Loop, made: Do) -> Callable[[Step], tuple[Step, ...]]:
    def change(step: Step) -> tuple[Step, ...]:
        if isinstance(step, Loop) and step.number == loop.number:
            return (replace(step, body=(made, *step.body)),)
        return (step,)

    return change


def _of_the_world(rng: random.Random, flow: Flow) -> Flow:
    """The flow where splits are found while the job runs, unless event time waits for them; or come in another order each
    time they are listed. Some readers have nothing for a while."""

    def varied(events: Events) -> Events:
        waits = events.timed and not events.stamped_inside
        known: list[Literal["finding", "anew"] | None] = [
            None,
            "anew",
            "anew" if waits or events.endless else "finding",
        ]
        found = rng.choice(known)
        splits = rng.choice([2, 3, 5]) if found and not waits else events.splits
        return replace(events, splits=splits, pauses=rng.choice([0, 0, 6]), found=found)

    def change(step: Step) -> tuple[Step, ...]:
        if isinstance(step, Do) and step.events is not None:
            return (replace(step, events=varied(step.events)),)
        return (step,)

    flow = replace(flow, source=varied(flow.source), table=varied(flow.table))
    return replace(flow, steps=change_steps(flow.steps, change))
