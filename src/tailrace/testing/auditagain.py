"""The second run of an audit (`testing.auditing`), in a process of its own. Workers are fed with the recording, and their
operators must emit what they emitted in the first run. `python -m tailrace.testing.auditagain` answers the requests of an
audit."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from tailrace.connectors.sinks import Callback
from tailrace.errors import InternalError, ProtocolViolation
from tailrace.graph.operators import Sink
from tailrace.protocol.deployment import Failed
from tailrace.runtime.worker.interception import intercept
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.journal.outside_answers import ReplayedAnswers
from tailrace.task.worker.eventlog import decode
from tailrace.task.worker.machine import Worker
from tailrace.testing.auditing import AuditedRecording, Differs, Listening, fault_in
from tailrace.testing.emissions import first_apart
from tailrace.testing.otherprocess import serve
from tailrace.testing.recording import job_of


def again(recording: AuditedRecording) -> Differs | None:
    """Feeds a fresh worker with a recording. Returns the first operator that emits something else, or None."""
    intercept()
    outside, listening = ReplayedAnswers(), Listening()
    setting, checkpointing = recording.setting, recording.checkpointing
    worker = setting.worker(recording.slot, lambda: _without_sinks(recording), checkpointing, Counter(), outside)
    events = zip(recording.story, recording.emissions, recording.faults, strict=True)
    for happened, emissions, fault in events:
        entry = decode(happened.entry)
        outside.give(entry.answers)
        try:
            worker.handle(entry.event)
        except ProtocolViolation as error:
            if not happened.raised:
                raise InternalError(f"K3: {entry.event} may not come when it is done again", ()) from error
        fault_now, worker.actions = fault_in(worker.actions), []
        found = first_apart(emissions, listening.take(worker))
        if (fault is None) is not (fault_now is None) and (found is None or "nothing" in found[1:]):
            name = next(one.operator or "unknown" for one in (fault, fault_now) if one is not None)
            return Differs(name, recording.slot, _place_of(worker, name), _failure(fault), _failure(fault_now))
        if found is not None:
            batch, was, now = found
            return Differs(batch.operator, batch.subtask, _place_of(worker, batch.operator), was, now)
    return None


def _failure(fault: Failed | None) -> str:
    return "no error" if fault is None else f"an error ({fault.message})"


def _without_sinks(recording: AuditedRecording) -> JobSpec:
    """The job of a recording, with sinks that drop everything: in the first run the sinks have written all of it."""
    spec = job_of(recording)
    for node in spec.plan.graph.nodes:
        if isinstance(node.operator, Sink):
            object.__setattr__(node.operator, "sink", Callback(_drop))  # frozen, and this copy is ours
    return spec


def _drop(record: Any) -> None:
    """Drops a record, so that nothing is written twice."""


def _place_of(worker: Worker, operator: str) -> str:
    return "" if worker.spec is None else worker.spec.place_of(operator)


def _audit(workers: list[AuditedRecording]) -> list[Differs]:
    return [found for one in workers if (found := again(one)) is not None]


if __name__ == "__main__":
    serve(_audit)
    sys.exit(0)
