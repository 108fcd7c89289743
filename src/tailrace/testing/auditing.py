"""Audits of dataflows. An audit checks that what an operator emits follows from its input and from `ctx` alone, so that
another worker can do the work again (`protocol.replay`).

The job runs on the simulated cluster, which logs the events of each worker. In another process, with another
`PYTHONHASHSEED`, fresh workers are fed with these logs: the same records, clock, answers of `ctx.call` and order. Their
operators must emit the same records.
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
from tailrace.runtime.worker.interception import release
from tailrace.task.contract.actions import Action, ToCoordinator
from tailrace.task.contract.events import Event
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.slice.machine import Slice
from tailrace.task.worker.machine import Worker
from tailrace.testing.emissions import Emission, watch
from tailrace.testing.inprocess import pending_sinks, prepared_simulation
from tailrace.testing.job import SimulatedJob
from tailrace.testing.otherprocess import OtherProcess
from tailrace.testing.recording import LiveRecording, Recordings, WorkerRecording
from tailrace.testing.setting import Setting

SECOND_RUN = "tailrace.testing.auditagain"
"""The module that runs in the other process."""


@dataclass(frozen=True)
class Differs:
    """An operator that emitted something else in the second run."""

    operator: str
    subtask: int
    written: str
    """Place of its function in the program: file, line and text of the line, where that is known."""
    was: str
    """Description of what it emitted first."""
    now: str
    """Description of what it emitted in the second run."""

    def __str__(self) -> str:
        where = f"; {self.written}" if self.written else ""
        return f"operator {self.operator!r}, subtask {self.subtask}, emitted {self.was}, and again {self.now}{where}"


@dataclass(frozen=True)
class Audit:
    """Result of an audit."""

    differences: tuple[Differs, ...]
    """The first difference of each worker; empty where both runs emitted the same."""
    records: int
    """Number of records that operators emitted and that were compared."""

    @property
    def same(self) -> bool:
        """True where no operator differs."""
        return not self.differences

    def __str__(self) -> str:
        if self.same:
            return f"{self.records} emitted records are the same when they are made again"
        return "\n".join(map(str, self.differences))


def audit(env: Environment, *, seed: int = 0, name: str = "audited") -> Audit:
    """Runs everything pending on a simulated cluster, lets another process do it again, and reports which operators
    emitted something else.

    A difference comes from something that a worker which takes a lost one's place does not have: the order of a set,
    `hash()`, `id()`, a global, a service that is called without `ctx.call`; in an environment without `standby` also
    Python's `time`, `random` and `uuid`, which are not recorded there. Records
    are compared by value, and by their timestamps. The output of sinks is not compared, and sinks write once. `seed`
    decides what the cluster does, as in `simulate`.

    Raises `JobFailed` where the job fails, and `GraphError` for a source without an end.
    """
    sinks, recordings = pending_sinks(env, name), Audited()
    options: dict[str, Any] = {"recordings": recordings, "depth": 0, "replaces": False, "spares": 0}
    simulation = prepared_simulation(env, name=name, seed=seed, debug=True, keep_trace=False, **options)
    nodes = simulation.plan.graph.nodes
    try:
        simulation.run()
    finally:
        if env.standby is not None:
            release()
    for node in nodes:
        if isinstance(node.operator, Sink):
            remove_unfinished(node.operator.sink, simulation.driver.run_id, node.uid)
            if isinstance(node.operator.sink, Result):
                node.operator.sink.note_end()
    job = SimulatedJob(simulation)
    env._note_start(job, sinks, simulation.plan)
    job.await_termination()
    with OtherProcess(SECOND_RUN) as other:
        found: list[Differs] = other.request(recordings.workers)
    emissions = [one for worker in recordings.workers for event in _emissions_of(worker) for one in event]
    return Audit(tuple(found), sum(one.count for one in emissions))


# The first run.


@dataclass
class AuditedRecording(WorkerRecording):
    """A recording that also has what the operators emitted, and the failures that the worker reported."""

    emissions: list[list[Emission]] = field(default_factory=list)
    """Emissions of each event."""
    faults: list[Failed | None] = field(default_factory=list)
    """For each event, the failure that the worker reported then, or None."""


def _emissions_of(recording: WorkerRecording) -> list[list[Emission]]:
    assert isinstance(recording, AuditedRecording)
    return recording.emissions


class Listening:
    """A listener to the operators of the slice that a worker runs."""

    def __init__(self) -> None:
        self._slice: Slice | None = None
        self._emissions: list[Emission] = []

    def take(self, machine: Worker) -> list[Emission]:
        """The emissions during an event. Where the event has begun an attempt, its operators are watched from here on:
        none of them has taken a step yet."""
        if machine.slice is not self._slice:
            self._slice = machine.slice
            if self._slice is not None:
                watch(self._slice, lambda one: self._emissions.append(one))
        emissions, self._emissions = self._emissions, []
        return emissions


class LiveAudited(LiveRecording):
    def __init__(self, recording: AuditedRecording) -> None:
        super().__init__(recording)
        self._audited, self._listening = recording, Listening()

    def handle(self, machine: Worker, event: Event) -> object:
        before = len(machine.actions)
        try:
            return super().handle(machine, event)
        finally:
            self._audited.emissions.append(self._listening.take(machine))
            self._audited.faults.append(fault_in(machine.actions[before:]))


class Audited(Recordings):
    def begin(
        self, load: Callable[[], JobSpec], setting: Setting, checkpointing: bool, slot: int, run_id: str
    ) -> LiveRecording:
        made = super().make(load, setting, checkpointing, slot, run_id)
        audited = AuditedRecording(made.slot, made.job, made.run_id, made.checkpointing, made.setting)
        self.workers.append(audited)
        return LiveAudited(audited)


def fault_in(actions: Sequence[Action]) -> Failed | None:
    """The failure that a worker reports among its actions, or None."""
    messages = [action.message for action in actions if isinstance(action, ToCoordinator)]
    return next((one for one in messages if isinstance(one, Failed)), None)
