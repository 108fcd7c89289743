"""Recordings of simulated workers: the events of each, as the log that a replay is fed with, and the actions that
followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tailrace.api.launch import launcher
from tailrace.task.contract.events import Event
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.journal.outside_answers import Recorder
from tailrace.task.worker.eventlog import LogEntry, action_bytes, encode
from tailrace.task.worker.machine import Worker
from tailrace.testing.setting import Setting


class Shipped:
    """A job as workers receive it: pickled once, and unpickled by each."""

    def __init__(self, spec: JobSpec) -> None:
        self.blob = launcher().dump_job(spec, stays=True)

    def __call__(self) -> JobSpec:
        spec: JobSpec = launcher().load_job(self.blob)
        return spec


@dataclass(frozen=True, slots=True)
class Happened:
    """An event as it is in the log, and the actions that followed from it."""

    entry: bytes
    actions: tuple[bytes, ...]
    raised: bool
    """True where the worker refused the event with an error: the coordinator had sent what must not come then."""


@dataclass
class WorkerRecording:
    """The whole life of one worker's process."""

    slot: int
    job: bytes
    """The pickled `JobSpec`."""
    run_id: str
    checkpointing: bool
    setting: Setting
    story: list[Happened] = field(default_factory=list)


class LiveRecording:
    """The recorder of one worker while it lives."""

    def __init__(self, recording: WorkerRecording) -> None:
        self.outside = Recorder()
        self._story = recording.story

    def handle(self, machine: Worker, event: Event) -> object:
        """Lets the worker handle an event, and records the actions that follow."""
        before, raised = len(machine.actions), True
        try:
            answer = machine.handle(event)
            raised = False
            return answer
        finally:
            entry = encode(LogEntry(event, self.outside.take()))
            actions = tuple(action_bytes(action) for action in machine.actions[before:])
            self._story.append(Happened(entry, actions, raised))


class Recordings:
    """The recordings of all workers of a simulation, or of several."""

    def __init__(self) -> None:
        self.workers: list[WorkerRecording] = []

    def begin(
        self, load: Callable[[], JobSpec], setting: Setting, checkpointing: bool, slot: int, run_id: str
    ) -> LiveRecording:
        """Begins the recording of a worker's process that starts."""
        recording = self.make(load, setting, checkpointing, slot, run_id)
        self.workers.append(recording)
        return LiveRecording(recording)

    def make(
        self, load: Callable[[], JobSpec], setting: Setting, checkpointing: bool, slot: int, run_id: str
    ) -> WorkerRecording:
        """A new, empty recording."""
        assert isinstance(load, Shipped), "only what travels as in a real job can be replayed"
        return WorkerRecording(slot, load.blob, run_id, checkpointing, setting)


def job_of(recording: WorkerRecording) -> JobSpec:
    """The job that a recorded worker was a part of, unpickled anew."""
    spec: JobSpec = launcher().load_job(recording.job)
    return replace(spec, run_id=recording.run_id)
