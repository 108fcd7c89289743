"""Additions to some random flows: functions that are called in the order of event time, on one stream or on two, joins, and
the event time of sources. Generators of their own keep all other draws of a seed as they were."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from search.random_flows.description import Do, Events, Flow, Kind, Step, change_steps

NO_ONE_TIME = frozenset({"later", "join", "hoard", "last call", "at the end", "drawn", "to the round's end"})
"""Kinds of operators behind which the time of a record depends on the run."""


def ordering(rng: random.Random, flow: Flow) -> Flow:
    """The flow with one or two of these operators outside of its loops, where each record has one time in all runs."""
    if not has_one_time(flow):
        return flow
    number = 1 + max((step.number for step in flow.all()), default=0)
    for i in range(rng.choice([1, 1, 2])):
        kind: Kind = rng.choice(["in order", "in order", "both in order"])
        made = Do(kind, number + i, parallelism=rng.choice([None, None, 1, 3]))
        at = rng.randint(0, len(flow.steps))
        flow = replace(flow, steps=(*flow.steps[:at], made, *flow.steps[at:]))
    return flow


def joining(rng: random.Random, flow: Flow) -> Flow:
    """The flow with a join by event time outside of its loops, where each record has one time in all runs, in whole
    seconds."""
    if not has_one_time(flow) or any(step.kind == "held" for step in flow.operators()):
        return flow
    number = rng.randint(0, 23) + 1 + max((step.number for step in flow.all()), default=0)
    kind: Kind = rng.choice(["interval join", "interval join", "window join", "version join"])
    made = Do(kind, number, parallelism=rng.choice([None, None, 1, 3]))
    at = rng.randint(0, len(flow.steps))
    return replace(flow, steps=(*flow.steps[:at], made, *flow.steps[at:]))


def joining_columns(rng: random.Random, flow: Flow, kinds: Sequence[Kind] = ("interval join of columns",)) -> Flow:
    """The flow with a join in columns, where `joining` may put one."""
    if not has_one_time(flow) or any(step.kind == "held" for step in flow.operators()):
        return flow
    number = rng.randint(0, 23) + 1 + max((step.number for step in flow.all()), default=0)
    kind = kinds[0] if len(kinds) == 1 else rng.choice(kinds)
    made = Do(kind, number, parallelism=rng.choice([None, None, 1, 3]))
    at = rng.randint(0, len(flow.steps))
    return replace(flow, steps=(*flow.steps[:at], made, *flow.steps[at:]))


def joining_more_columns(rng: random.Random, flow: Flow) -> Flow:
    """The flow with a join by windows or with versions in columns, where `joining` may put one."""
    return joining_columns(rng, flow, ("window join of columns", "version join of columns", "version join of columns"))


def joining_whole_windows(rng: random.Random, flow: Flow) -> Flow:
    """The flow with a join in columns whose windows come out whole, where `joining` may put one."""
    return joining_columns(rng, flow, ("session join of columns", "lists of columns"))


def living(rng: random.Random, flow: Flow) -> Flow:
    """The flow with an operator whose state has a time to live, outside of its loops, where each record has one time in all
    runs."""
    if not has_one_time(flow):
        return flow
    number = 1 + max((step.number for step in flow.all()), default=0)
    made = Do("lived", number, parallelism=rng.choice([None, None, 1, 3]))
    at = rng.randint(0, len(flow.steps))
    return replace(flow, steps=(*flow.steps[:at], made, *flow.steps[at:]))


def source_time(rng: random.Random, flow: Flow) -> Flow:
    """The flow with sources that read no split far ahead of another, and whose event time goes on by the clock while they
    are silent, where no loop is behind them."""
    loops = any(True for _ in flow.loops())

    def varied(events: Events) -> Events:
        if not events.timed or events.stamped_inside:
            return events
        drift = rng.choice([None, 0, 1, 3]) if events.splits > 1 else None
        return replace(events, drift=drift, goes_on=events.falls_silent and not loops and rng.random() < 0.7)

    def change(step: Step) -> tuple[Step, ...]:
        return (replace(step, events=varied(step.events)),) if isinstance(step, Do) and step.events else (step,)

    flow = replace(flow, source=varied(flow.source), table=varied(flow.table))
    return replace(flow, steps=change_steps(flow.steps, change))


def sharing(rng: random.Random, flow: Flow) -> Flow:
    """The flow with sources whose splits are read by one reader in each subtask."""

    def shared(events: Events) -> Events:
        return replace(events, shared=rng.random() < 0.8)

    def change(step: Step) -> tuple[Step, ...]:
        return (replace(step, events=shared(step.events)),) if isinstance(step, Do) and step.events else (step,)

    flow = replace(flow, source=shared(flow.source), table=shared(flow.table))
    return replace(flow, steps=change_steps(flow.steps, change))


def ahead(flow: Flow) -> Flow:
    """The flow with a source of which some timestamps are far ahead of the clock, if it has timestamps."""
    source = flow.source
    return flow if not source.timed or source.stamped_inside else replace(flow, source=replace(source, ahead=True))


def has_one_time(flow: Flow) -> bool:
    """True where the time of each record is the same in all runs, and none comes when event time has gone on without it: it
    has ended before, or a reader that pauses counts as silent."""
    merged = any(loop.combine for loop in flow.loops())
    return (
        not NO_ONE_TIME & {step.kind for step in flow.operators()}
        and not any(step.phases for step in flow.operators() if step.kind == "more")
        and all(events.timed and not (merged and events.distinct < events.n) for events in flow.sources())
        and not any(events.falls_silent and events.pauses for events in flow.sources())
    )
