"""Bugs that random dataflows find, where no golden program has the shape that shows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tailrace.coordinator.checkpoints import CheckpointSettings
from tailrace.task.restore import Restorer
from tailrace.testing.faults import Fault
from tailrace.testing.planting import RANDOM, Bug, Patches, method
from tailrace.testing.random_flows.description import Do
from tailrace.testing.random_flows.drawing import Run
from tailrace.testing.scenarios import MS, Scenario


def _deaths_at_the_end(made: Scenario) -> Scenario:
    """Checkpoints follow each other closely, and workers die while functions are called to finish."""
    settings = CheckpointSettings(interval=2 * MS, tolerated_failures=10_000, max_concurrent=3, keep=1)
    turns = (60 + 17 * (made.seed % 10), 600, 1_200)
    faults = tuple(Fault(turn, "kill", turn, after="CallFinish") for turn in turns)
    return replace(
        made, network="in small steps", window=None, eager=False, debug=False, checkpoints=settings, faults=faults
    )


def _in_loops(run: Run) -> Iterator[str]:
    return (step.kind for loop in run.flow.loops() for step in loop.body if isinstance(step, Do))


def _hoards_in_loops(run: Run) -> bool:
    """Small ones that are restored as they were: calls of `finish` are not counted at another parallelism."""
    return "hoard" in _in_loops(run) and run.flow.size < 250 and len(run.phases) == 1 and not run.flow.endless


def _finish_forgotten() -> Patches:
    """How often functions were called to finish before a checkpoint is not known behind it."""

    def make(restored: Any) -> Any:
        def forgetful(self: Restorer, task: Any, operator: Any, rested: int, *rest: Any) -> None:
            restored(self, task, operator, 0, *rest)

        return forgetful

    return [method(Restorer, "_loop_restored", make)]


def _comes_later(run: Run) -> bool:
    """A stream enters the body of a loop in a later run only."""
    return len(run.phases) > 1 and any(
        isinstance(step, Do) and step.kind == "more" and step.phases and 0 not in step.phases
        for loop in run.flow.loops()
        for step in loop.body
    )


def _fed_by_inputs_alone() -> Patches:
    """What comes back to a head is not counted among what feeds it."""

    def make(_: Any) -> Any:
        return lambda self, node: [edge.source for edge in self.plan.graph.node(node).inputs]

    return [method(Restorer, "_before", make)]


FLOW_BUGS = (
    Bug(
        "a loop that had ended stays ended when a new stream enters it",
        RANDOM,
        _fed_by_inputs_alone,
        seed=417,
        wants=_comes_later,
    ),
    Bug(
        "functions that had finished in a loop finish again",
        RANDOM,
        _finish_forgotten,
        _deaths_at_the_end,
        seed=140,
        wants=_hoards_in_loops,
    ),
)
