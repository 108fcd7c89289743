"""The metrics of jobs, whoever reads them: names, labels, and the value of each by a snapshot.

Labels are the job, the operator and the input. None of them grows with time: there is no label for an attempt, a process, a
path or a subtask. The figures of a job go with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.log import log
from tailrace.ui.jobs import SECONDS, Jobs, NotAnswered

JOB = "tailrace_job"
Sample = tuple[tuple[str, ...], float | None]
"""Values of the labels behind the job, and the value; None where it is not known."""


@dataclass(frozen=True)
class Family:
    """Metrics of one name. `samples` gives those of a snapshot. `labels` are the ones beside the job."""

    name: str
    text: str
    samples: Callable[[JobSnapshot], Iterable[Sample]]
    labels: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """True for a counter; else it is a gauge."""
        return self.name.endswith("_total")


def _job(name: str, text: str, value: Callable[[JobSnapshot], float | None]) -> Family:
    return Family(name, text, lambda shot: [((), value(shot))])


def _operator(name: str, text: str, value: Callable[[Any], float | None]) -> Family:
    def samples(shot: JobSnapshot) -> Iterator[Sample]:
        labels = labels_of(shot)
        for uid, figures in shot.operators.items():
            yield (labels[uid],), value(figures)

    return Family(name, text, samples, ("operator",))


def _source(name: str, text: str, value: Callable[[Any], float | None]) -> Family:
    def samples(shot: JobSnapshot) -> Iterator[Sample]:
        labels = labels_of(shot)
        for one in shot.sources:
            yield (labels[one.operator],), value(one)

    return Family(name, text, samples, ("operator",))


def _loop(name: str, text: str, value: Callable[[Any], float | None]) -> Family:
    def samples(shot: JobSnapshot) -> Iterator[Sample]:
        names = Counter(one.name for one in shot.loops)
        for one in shot.loops:
            yield (one.name if names[one.name] == 1 else f"{one.name} {one.scope}",), value(one)

    return Family(name, text, samples, ("operator",))


def _checkpoints(name: str, text: str, value: Callable[[Any], float | None]) -> Family:
    return _job(name, text, lambda shot: None if shot.checkpoints is None else value(shot.checkpoints))


def _last(name: str, text: str, value: Callable[[Any], float]) -> Family:
    return _checkpoints(name, text, lambda taken: value(taken.history[-1]) if taken.history else None)


def _statuses(shot: JobSnapshot) -> Iterator[Sample]:
    for status in JobStatus:
        yield (str(status),), float(shot.job.status == str(status))


def _inputs(shot: JobSnapshot) -> Iterator[Sample]:
    labels = labels_of(shot)
    for one in shot.inputs:
        yield (labels[one.operator], labels[one.source]), one.lag


def _stalls(shot: JobSnapshot) -> Iterator[Sample]:
    labels, longest = labels_of(shot), dict[str, float]()
    for one in shot.stalled:  # between steps the operator may not be known
        longest[one.operator] = max(one.seconds, longest.get(one.operator, 0.0))
    yield from (((labels[uid],), longest.get(uid, 0.0)) for uid in labels)


def _worst(share: Any) -> float | None:
    return None if share is None else share.worst


def _age(shot: JobSnapshot) -> float | None:
    taken = shot.checkpoints
    if taken is None:
        return None
    return max(0.0, shot.at - (taken.history[-1].at if taken.history else shot.job.started))


# fmt: off
FAMILIES = (
    Family("tailrace_job_status", "1 for the status of the job, 0 for all others.", _statuses, ("status",)),
    _job("tailrace_job_status_seconds", "Time since which the job has its status.", lambda s: max(0.0, s.at - s.job.since)),
    _job("tailrace_restarts_total", "Restarts after failures.", lambda s: s.job.restarts),
    _job("tailrace_workers", "Workers that the job needs.", lambda s: s.job.workers),
    _job("tailrace_workers_reporting", "Workers that have reported since the start.", lambda s: s.job.workers_reporting),
    _job("tailrace_workers_busy_ratio", "Share of time in which the busiest worker works.", lambda s: _worst(s.job.busy)),
    _job("tailrace_inflight_bytes", "Bytes of records that wait in channels.", lambda s: s.job.inflight_bytes),
    _job("tailrace_event_time_lag_seconds", "Event time of the job behind the clock.", lambda s: s.job.event_time_lag),
    _job("tailrace_refused_connections_total", "Connections refused at the ports of the job.",
         lambda s: sum(s.job.refused_connections.values())),
    _operator("tailrace_operator_records_in_total", "Records that came in.", lambda o: o.records_in),
    _operator("tailrace_operator_records_out_total", "Records that went out.", lambda o: o.records_out),
    _operator("tailrace_operator_late_records_total", "Records that came behind event time.", lambda o: o.late),
    _operator("tailrace_operator_failed_records_total", "Records set aside because user code failed.", lambda o: o.failed),
    _operator("tailrace_operator_busy_ratio", "Share of time working, in the busiest subtask.", lambda o: _worst(o.busy)),
    _operator("tailrace_operator_backpressured_ratio", "Share of time waiting for operators behind, in the worst subtask.",
              lambda o: _worst(o.backpressured)),
    _operator("tailrace_operator_skew_ratio", "Share of the records that the subtask with the most has.",
              lambda o: None if o.skew is None else o.skew.share),
    _operator("tailrace_operator_waiting_bytes", "Bytes that wait at both ends of its chain.", lambda o: o.waiting_bytes),
    _operator("tailrace_operator_state_entries", "Entries of keyed state and timers.", lambda o: o.state_entries),
    _operator("tailrace_operator_state_bytes", "Bytes of keyed state, by the size of an entry in checkpoints.",
              lambda o: o.state_bytes),
    _operator("tailrace_operator_event_time_lag_seconds", "Event time of its slowest subtask behind the clock.",
              lambda o: o.lag),
    Family("tailrace_input_event_time_lag_seconds", "Event time of an input of an operator behind the clock.", _inputs,
           ("operator", "input")),
    Family("tailrace_operator_stalled_seconds", "Duration of the longest step that has not come back; 0 without one.",
           _stalls, ("operator",)),
    _source("tailrace_source_lag_records", "Records that a source has not read yet.", lambda r: r.lag_records),
    _source("tailrace_source_lag_seconds", "Time by which a source is behind.", lambda r: r.lag_seconds),
    _loop("tailrace_loop_waiting_records", "Records of feedback that wait at the head of a loop.",
          lambda one: one.feedback_waiting),
    _loop("tailrace_loop_feedback_records_total", "Records of feedback that the head of a loop has read.",
          lambda one: one.feedback_total),
    _checkpoints("tailrace_checkpoints_completed_total", "Complete checkpoints.", lambda c: c.completed),
    _checkpoints("tailrace_checkpoints_aborted_total", "Checkpoints that were given up.", lambda c: c.aborted),
    _checkpoints("tailrace_checkpoints_failed_in_a_row", "Checkpoints failed since the last complete one.",
                 lambda c: c.failed_in_a_row),
    _job("tailrace_checkpoint_age_seconds", "Age of the newest complete checkpoint; without one, of the job.", _age),
    _last("tailrace_checkpoint_duration_seconds", "Duration of the newest complete checkpoint.", lambda c: c.duration),
    _last("tailrace_checkpoint_bytes", "Bytes that the newest complete checkpoint has written.", lambda c: c.bytes),
    _last("tailrace_checkpoint_full_bytes", "Bytes of all files of the newest complete checkpoint.", lambda c: c.full_bytes),
    _checkpoints("tailrace_checkpoint_under_way_seconds", "Age of the oldest checkpoint under way; 0 where there is none.",
                 lambda c: max((one.age for one in c.under_way), default=0.0)),
    _checkpoints("tailrace_unreachable_seconds", "Time for which the job has waited for a place out of reach.",
                 lambda c: max((one.age for one in c.waits_for), default=0.0)),
    _job("tailrace_standbys", "Standbys of the job.", lambda s: None if s.standbys is None else s.standbys[1]),
    _job("tailrace_standbys_ready", "Standbys that hold the state of their slices.",
         lambda s: None if s.standbys is None else s.standbys[0]),
    _job("tailrace_workers_replaced_total", "Workers replaced while the others went on.",
         lambda s: sum(one["replaced"] for one in s.slices)),
)  # fmt: skip
# fmt: on
"""All metrics but those of users, in the order in which they are shown."""


def labels_of(shot: JobSnapshot) -> dict[str, str]:
    """Uid -> the label of an operator: its name, with the uid behind it where another operator has that name."""
    names = Counter(one.name for one in shot.graph.operators)
    return {one.uid: one.name if names[one.name] == 1 else f"{one.name} {one.uid}" for one in shot.graph.operators}


def newest_snapshots(jobs: Jobs) -> list[JobSnapshot]:
    """The snapshot of each job; of several jobs with one name that of the newest, of those that run where one does."""
    found: dict[str, JobSnapshot] = {}
    for job in jobs():
        try:
            answer = job.request({"verb": "snapshot"}, SECONDS)
            shot = msgspec.convert(answer, JobSnapshot)
        except (NotAnswered, msgspec.ValidationError) as error:
            log.warning("a job has no metrics at this scrape: %s", error)
            continue
        known = found.get(shot.job.name)
        if known is None or _rank(known) <= _rank(shot):
            found[shot.job.name] = shot
    return list(found.values())


def _rank(shot: JobSnapshot) -> tuple[bool, float]:
    return not JobStatus(shot.job.status).final, shot.job.started


SHOWN_ABOVE = (
    "lag_records", "lag_seconds", "feedback_records", "feedback_spilled_bytes", "feedback_total", "held_by_split", "round",
)  # fmt: skip
"""Figures of operators that have a metric of their own."""
