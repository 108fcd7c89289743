"""Reduction of a failing run: smaller runs are tried, and each that still fails is kept, until no smaller one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from search.random_flows.description import Do, Events, Flow, Fork, Loop, Step, change_steps
from search.random_flows.drawing import Run
from search.random_flows.running import carry_out


def shrunk(run: Run, fails: Callable[[Run], bool] | None = None, tries: int = 300) -> Run:
    """The smallest run that still fails, found within so many tries."""
    fails = fails if fails is not None else lambda one: bool(carry_out(one).wrong)
    tried: set[Run] = {run}
    going = True
    while going:
        going = False
        for one in smaller(run):
            if one in tried:
                continue
            if len(tried) > tries:
                return run
            tried.add(one)
            if fails(one):
                run, going = one, True
                break
    return run


def smaller(run: Run) -> Iterator[Run]:
    """Runs that are a little simpler, those that leave most out first."""
    yield from _fewer_phases(run)
    faults = run.world.faults
    if len(faults) > 1:
        yield replace(run, world=replace(run.world, faults=()))
        yield replace(run, world=replace(run.world, faults=faults[: len(faults) // 2]))
    for flow in _smaller_flows(run.flow):
        yield replace(run, flow=flow)
    for i in range(len(faults)):
        yield replace(run, world=replace(run.world, faults=faults[:i] + faults[i + 1 :]))
    yield from _simpler_worlds(run)


def _fewer_phases(run: Run) -> Iterator[Run]:
    for i in range(len(run.phases) - 1):
        left = run.phases[:i] + run.phases[i + 1 :]
        yield replace(run, phases=left, flow=_without_extras(run.flow))
    same = tuple(replace(phase, parallelism=run.phases[-1].parallelism) for phase in run.phases)
    if same != run.phases:
        yield replace(run, phases=same)


def _without_extras(flow: Flow) -> Flow:
    """The flow without steps that come and go with phases: phases are numbered, and their numbers have changed."""

    def change(step: Step) -> tuple[Step, ...]:
        if not isinstance(step, Do) or not step.phases:
            return (step,)
        return () if step.kind == "extra" else (replace(step, phases=()),)

    return replace(flow, steps=change_steps(flow.steps, change))


def _smaller_flows(flow: Flow) -> Iterator[Flow]:
    count = len(list(flow.all()))
    for i in range(count):
        yield replace(flow, steps=_at(flow.steps, i, lambda step: ()))
    for i in range(count):
        yield replace(flow, steps=_at(flow.steps, i, _flat))
    for i in range(count):
        for change in _PLAINER:
            yield replace(flow, steps=_at(flow.steps, i, change))
    for events in _smaller_events(flow.source):
        yield replace(flow, source=events)
    if flow.sink is not None:
        yield replace(flow, sink=None)


def _at(steps: tuple[Step, ...], place: int, change: Callable[[Step], tuple[Step, ...]]) -> tuple[Step, ...]:
    """The steps with one of them changed, counted in the order in which `changed` goes through them."""
    seen = -1

    def one(step: Step) -> tuple[Step, ...]:
        nonlocal seen
        seen += 1
        return change(step) if seen == place else (step,)

    return change_steps(steps, one)


def _flat(step: Step) -> tuple[Step, ...]:
    """The steps inside of a fork, or of a loop that is not needed itself."""
    if isinstance(step, Fork):
        return step.left + step.right
    if isinstance(step, Loop) and step.rounds is None:
        return change_steps(
            step.body, lambda one: (replace(one, level=one.level - 1) if isinstance(one, Loop) else one,)
        )
    return (step,)


def _plainer(kind: type, **values: Any) -> Callable[[Step], tuple[Step, ...]]:
    return lambda step: (replace(step, **values) if isinstance(step, kind) else step,)


def _fewer_events(step: Step) -> tuple[Step, ...]:
    if not isinstance(step, Do) or step.events is None:
        return (step,)
    return (replace(step, events=next(_smaller_events(step.events), step.events)),)


_PLAINER = (
    _plainer(Loop, laps=1),
    _plainer(Loop, feedback="plain"),
    _plainer(Loop, separate=False),
    _plainer(Loop, combine=False, astray=False),
    _plainer(Loop, spill=None),
    _plainer(Loop, priority="adaptive"),
    _plainer(Loop, parallelism=None),
    _plainer(Loop, span=None),
    _plainer(Do, parallelism=None),
    _plainer(Do, way="forward"),
    _fewer_events,
)


def _smaller_events(events: Events) -> Iterator[Events]:
    for n in (events.n // 2, events.n - 1):
        if 0 < n < events.n:
            yield replace(events, n=n, distinct=max(1, min(n, events.distinct)))
    for values in (
        {"splits": 1},
        {"pace": 0},
        {"silence": 0},
        {"disorder": 0},
        {"pauses": 0},
        {"found": None},
        {"distinct": events.n},
        {"parallelism": None},
    ):
        yield replace(events, **values)


def _simpler_worlds(run: Run) -> Iterator[Run]:
    world = run.world
    if run.disk:
        yield replace(run, disk=False)
    if world.checkpoints is not None and len(run.phases) == 1 and not run.flow.endless:
        kinds = ("crash-driver", "freeze-driver", "storage")
        faults = tuple(fault for fault in world.faults if fault.kind not in kinds)
        yield replace(run, world=replace(world, checkpoints=None, faults=faults))
    for values in (
        {"window": None},
        {"small": None},
        {"chunk": None},
        {"debug": False},
        {"copies": False},
        {"eager": False},
        {"restarts": ("fixed", 0)},
        {"network": "fast"},
    ):
        yield replace(run, world=replace(world, **values))  # type: ignore[arg-type]
    if world.checkpoints is not None and world.checkpoints.max_concurrent > 1:
        yield replace(run, world=replace(world, checkpoints=replace(world.checkpoints, max_concurrent=1)))
    for parallelism in range(1, run.phases[-1].parallelism):
        if len(run.phases) == 1:
            yield replace(run, phases=(replace(run.phases[0], parallelism=parallelism),))
