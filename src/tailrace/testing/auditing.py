"""Audits of dataflows: whether what an operator emits follows from its input and from `ctx` alone, so that another worker
can do it again (`protocol.replay`).

The job runs on the simulated cluster, and what happens to each worker is logged. In another process, with another
`PYTHONHASHSEED`, fresh workers are fed with the same logs: the same records, clock, answers of `ctx.call` and order. Their
operators must emit the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.api.environment import Environment
from tailrace.connectors.filesinks import remove_unfinished
from tailrace.connectors.results import Result
from tailrace.graph.operators import Sink
from tailrace.protocol.deployment import Failed
from tailrace.task.contract.actions import Action, ToCoordinator
from tailrace.task.contract.events import Event
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.slice.machine import Slice
from tailrace.task.worker.machine import Worker
from tailrace.testing.emissions import Emission, watch
from tailrace.testing.inprocess import checked, prepared_simulation
from tailrace.testing.job import SimulatedJob
from tailrace.testing.otherprocess import OtherProcess
from tailrace.testing.recording import LiveRecording, Recording, Recordings
from tailrace.testing.setting import Setting

SECOND_RUN = "tailrace.testing.auditagain"
"""The program of the other process."""


@dataclass(frozen=True)
class Differs:
    """An operator that has emitted something else when the same was done again."""

    operator: str
    subtask: int
    written: str
    """Where it is written: file, line and text of the line, where that is known."""
    was: str
    """What it emitted first, in words."""
    now: str
    """What it emitted when the same was done again."""

    def __str__(self) -> str:
        where = f"; {self.written}" if self.written else ""
        return f"operator {self.operator!r}, subtask {self.subtask}, emitted {self.was}, and again {self.now}{where}"


@dataclass(frozen=True)
class Audit:
    """What an audit has found."""

    differences: tuple[Differs, ...]
    """The first difference of each worker; empty where all that was emitted was the same."""
    records: int
    """How many records operators have emitted: so many were compared."""

    @property
    def same(self) -> bool:
        """Whether no operator differs."""
        return not self.differences

    def __str__(self) -> str:
        if self.same:
            return f"{self.records} emitted records are the same when they are made again"
        return "\n".join(map(str, self.differences))


def audit(env: Environment, *, seed: int = 0, name: str = "audited") -> Audit:
    """Runs everything pending on a simulated cluster, lets another process do the same again, and says which operators
    emitted something else.

    What differs follows from something that a worker which takes a lost one's place does not have: Python's `time`,
    `random`, `uuid`, the order of a set, `hash()`, `id()`, a global, a service that is asked without `ctx.call`. Records are
    compared by value, and by their timestamps. What sinks write is not compared, and they write once. `seed` decides what
    the cluster does, as in `simulate`.

    Raises `JobFailed` where the job fails, and `GraphError` for a source without an end.
    """
    sinks, recordings = checked(env, name), Audited()
    options: dict[str, Any] = {"recordings": recordings, "depth": 0, "replaces": False, "spares": 0}
    simulation = prepared_simulation(env, name=name, seed=seed, debug=True, keep_trace=False, **options)
    nodes = simulation.plan.graph.nodes
    simulation.run()
    for node in nodes:
        if isinstance(node.operator, Sink):
            remove_unfinished(node.operator.sink, simulation.driver.run_id, node.uid)
            if isinstance(node.operator.sink, Result):
                node.operator.sink.ended()
    job = SimulatedJob(simulation)
    env._started(job, sinks, simulation.plan)
    job.await_termination()
    with OtherProcess(SECOND_RUN) as other:
        found: list[Differs] = other.ask(recordings.workers)
    told = [one for worker in recordings.workers for event in _said(worker) for one in event]
    return Audit(tuple(found), sum(one.count for one in told))


# The first run.


@dataclass
class Heard(Recording):
    """A recording that also has what the operators emitted, and of what the worker failed."""

    said: list[list[Emission]] = field(default_factory=list)
    """Of each event."""
    faults: list[Failed | None] = field(default_factory=list)
    """Of each event, what the worker said it failed of then."""


def _said(recording: Recording) -> list[list[Emission]]:
    assert isinstance(recording, Heard)
    return recording.said


class Listening:
    """Listens to the operators of whatever a worker runs."""

    def __init__(self) -> None:
        self._slice: Slice | None = None
        self._said: list[Emission] = []

    def taken(self, machine: Worker) -> list[Emission]:
        """What was emitted during an event. An attempt that the event has begun is listened to from here on: it has not
        taken a step."""
        if machine.slice is not self._slice:
            self._slice = machine.slice
            if self._slice is not None:
                watch(self._slice, lambda one: self._said.append(one))
        said, self._said = self._said, []
        return said


class LiveHeard(LiveRecording):
    def __init__(self, recording: Heard) -> None:
        super().__init__(recording)
        self._heard, self._listening = recording, Listening()

    def handle(self, machine: Worker, event: Event) -> object:
        before = len(machine.actions)
        try:
            return super().handle(machine, event)
        finally:
            self._heard.said.append(self._listening.taken(machine))
            self._heard.faults.append(fault_in(machine.actions[before:]))


class Audited(Recordings):
    def begin(
        self, load: Callable[[], JobSpec], setting: Setting, checkpointing: bool, slot: int, run_id: str
    ) -> LiveRecording:
        made = super().made(load, setting, checkpointing, slot, run_id)
        heard = Heard(made.slot, made.job, made.run_id, made.checkpointing, made.setting)
        self.workers.append(heard)
        return LiveHeard(heard)


def fault_in(actions: Sequence[Action]) -> Failed | None:
    """The failure that a worker tells, if it does."""
    said = [action.message for action in actions if isinstance(action, ToCoordinator)]
    return next((one for one in said if isinstance(one, Failed)), None)
