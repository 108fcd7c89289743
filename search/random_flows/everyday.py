"""An addition to some random flows: everyday verbs. A generator of its own keeps all other draws of a seed as they were."""

from __future__ import annotations

import random
from dataclasses import replace

from search.random_flows.description import Do, Flow, Kind, Loop
from search.random_flows.ordering import has_one_time

TIMED = frozenset(("tumbling", "sliding", "windows of columns", "sessions", "sessions of columns"))
"""Kinds of operators behind which it is known that no record is late."""


def everyday(rng: random.Random, flow: Flow) -> Flow:
    """The flow with an everyday verb, maybe in a loop. Where records are merged in loops the flow stays as it is."""
    if any(loop.combine for loop in flow.loops()):
        return flow
    number = 1 + max((step.number for step in flow.all()), default=0)
    kinds: list[Kind] = ["distinct", "distinct in columns", "best", *([] if flow.endless else ["batched"])]  # type: ignore[list-item]
    kind = rng.choice(kinds)
    if kind != "batched" and any(step.kind in TIMED for step in flow.operators()) and rng.random() < 0.5:
        kind = "distinct within"
    made = Do(kind, number, parallelism=rng.choice([None, None, 1, 3]))
    loops = [at for at, step in enumerate(flow.steps) if isinstance(step, Loop) and step.rounds is None]
    if loops and kind in ("distinct", "distinct in columns") and rng.random() < 0.5:
        at = rng.choice(loops)
        loop = flow.steps[at]
        assert isinstance(loop, Loop)
        inside = rng.randint(0, len(loop.body))
        loop = replace(loop, body=(*loop.body[:inside], made, *loop.body[inside:]))
        return replace(flow, steps=(*flow.steps[:at], loop, *flow.steps[at + 1 :]))
    return _with(rng, flow, made)


def once_more(rng: random.Random, flow: Flow) -> Flow:
    """The flow with another everyday verb, outside of loops. Where records are merged in loops, or there is no end, the flow
    stays as it is. The last record of each key needs records that have a time."""
    if flow.endless or any(loop.combine for loop in flow.loops()):
        return flow
    number = 1 + max((step.number for step in flow.all()), default=0)
    kind: Kind = rng.choice(["last of each", "lagged", "limited"])
    if kind == "last of each" and not has_one_time(flow):
        kind = "lagged"
    return _with(rng, flow, Do(kind, number, parallelism=rng.choice([None, None, 1, 3])))


def calling(rng: random.Random, flow: Flow) -> Flow:
    """The flow with calls of an asynchronous function, outside of loops: in loops they are refused."""
    number = 1 + max((step.number for step in flow.all()), default=0)
    return _with(rng, flow, Do("called", number, parallelism=rng.choice([None, None, 1, 3])))


def refreshing(rng: random.Random, flow: Flow) -> Flow:
    """The flow with a lookup in a table that is read anew, outside of loops. Where records are merged in loops, or there is
    no end, the flow stays as it is."""
    if flow.endless or any(loop.combine for loop in flow.loops()):
        return flow
    number = 1 + max((step.number for step in flow.all()), default=0)
    return _with(rng, flow, Do("looked up", number, parallelism=rng.choice([None, None, 1, 3])))


def _with(rng: random.Random, flow: Flow, made: Do) -> Flow:
    at = rng.randint(0, len(flow.steps))
    return replace(flow, steps=(*flow.steps[:at], made, *flow.steps[at:]))
