"""The snapshot of a job: its shape as data, which turns into JSON and back. `snapshot_maker` makes it.

Times are seconds since 1970, durations are seconds, shares are from 0 to 1. None stands for what no worker has reported
yet, or what is not measured. A uid names an operator everywhere.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Share(msgspec.Struct, frozen=True):
    """The share of the last seconds that an operator has spent in some way: of its subtask with the most of it, and of the
    one with the least."""

    worst: float
    least: float
    subtask: int
    """The subtask with the most of it."""


class Skew(msgspec.Struct, frozen=True):
    """The subtask with the most of something, its amount, and its share of the whole. `least` is the amount of the subtask
    with the least."""

    subtask: int
    most: float
    least: float
    share: float


class Metric(msgspec.Struct, frozen=True):
    """A figure of user code or of an operator, over all subtasks that have it."""

    total: float
    least: float
    most: float
    kind: str = "counter"
    """The kind: "counter", "gauge" or "histogram"."""
    buckets: list[int] | None = None
    """For a histogram, the number of values in each bucket; `total` is the sum of all values then."""


class HeavyKey(msgspec.Struct, frozen=True):
    """A key on which much of its operator's time goes, as text, and its share of that time: an estimate from looks at the
    workers."""

    key: str
    share: float


class FailureFigures(msgspec.Struct, frozen=True):
    """A failure of the job, or of a worker of it."""

    at: float
    kind: str
    """The kind of the failure (`FailureKind`): "user" for user code."""
    text: str
    """The first line of `details`."""
    details: str = ""
    """The whole text, with the user's part of the traceback where there is one."""
    operator: str | None = None
    """The uid of the operator, where one is known."""
    operator_name: str | None = None
    subtask: int | None = None
    record: str | None = None
    line: str | None = None
    """The line of the user's program in which it was raised."""
    advice: str = ""
    restart: int | None = None
    """The number of the restart that followed; None where none did."""
    worker: int | None = None
    """The number of the worker that was lost and replaced alone, where that followed."""


class Finding(msgspec.Struct, frozen=True):
    """Something that holds a job."""

    kind: str
    """The kind of it, such as "outage" or "busy"."""
    health: str
    """The health of a job with it: "good", "warns" (the job goes on) or "bad" (it does not)."""
    text: str
    """A sentence."""
    details: str = ""
    """A stack or a traceback, where there is one."""
    operator: str | None = None
    """The uid of the operator that holds the job, where it is one."""


class LagFigures(msgspec.Struct, frozen=True):
    """The distance of a job from the end of its input: of the source that is farthest behind. Where no source measures it,
    that of event time from the clock."""

    seconds: float | None
    records: float | None
    source: str | None
    """The uid of the source; None for event time."""
    change: float | None = None
    """The change in the last minute, in seconds where they are known, else in records; None before ten seconds of it."""
    grows: bool = False
    """True if it has grown in the last minute by more than figures do that are steady."""


class JobFigures(msgspec.Struct, frozen=True):
    """A job as a whole. Counts are since the last start or restart."""

    id: str
    name: str
    status: str
    since: float
    """The time since which it has this status."""
    started: float
    reason: str = ""
    """The reason of the status, where it is another one than RUNNING or FINISHED."""
    restarts: int = 0
    process: int | None = None
    """The process id of its program."""
    host: str = ""
    workers: int = 0
    workers_reporting: int = 0
    """The number of workers that have reported since the last start."""
    records_in: int | None = None
    records_out: int | None = None
    rate_in: float | None = None
    """Records per second that sources have read in the last seconds."""
    rate_out: float | None = None
    busy: Share | None = None
    """The share of the last seconds in which workers have worked; `subtask` is the worker's number."""
    watermark: str | None = None
    """Event time; None where the job has none. "-inf" before the first, "end" behind the last."""
    event_time_lag: float | None = None
    inflight_bytes: int | None = None
    refused_connections: dict[str, int] = {}


class GraphOperator(msgspec.Struct, frozen=True):
    """An operator of the graph."""

    uid: str
    name: str
    kind: str
    """The kind of the operator: "source", "map", "keyed_process", "head" of a loop, …"""
    parallelism: int
    chain: int
    """The number of the chain that it runs in: its operators work in one step, without channels between them."""
    scope: str
    """The id of the loop that it is in; empty outside of loops."""
    form: str
    line: str
    """The verb, and the line of the user's program that calls it."""
    description: str = ""
    """The description of the source or sink."""


class GraphEdge(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """An edge of the graph, between two uids."""

    source: str
    target: str
    partitioning: str
    feedback: bool = False
    chained: bool = False
    port: int = 0
    tag: str | None = None
    """The side output that it carries."""


class GraphScope(msgspec.Struct, frozen=True):
    """A loop as a box of the graph. `parent` is the box around it; empty for none."""

    id: str
    parent: str
    loop: str
    """The name of the loop."""
    rounds: bool = False
    max_rounds: int | None = None


class GraphShape(msgspec.Struct, frozen=True):
    """The graph of a job. It stays as long as the job runs."""

    operators: list[GraphOperator]
    edges: list[GraphEdge]
    scopes: list[GraphScope]


class OperatorFigures(msgspec.Struct, frozen=True):
    """Figures of an operator, of all its subtasks. Counts are since the last start or restart."""

    subtasks_reporting: int = 0
    subtasks_finished: int = 0
    records_in: int | None = None
    """Records that came in; None between functions that run as one, such as a filter behind a map."""
    records_out: int | None = None
    """Records that went out, to the main and side outputs, each once however many operators receive it."""
    rate_in: float | None = None
    rate_out: float | None = None
    busy: Share | None = None
    """Working: of its chain, as are the next two. What is left of 1 is time in which the worker did something else."""
    waiting: Share | None = None
    """Waiting for input, for time, for answers, or for the other inputs at a checkpoint."""
    backpressured: Share | None = None
    """Having input, and waiting for an operator behind it, or for a checkpoint."""
    skew: Skew | None = None
    """Records read, by subtask; None where there is only one."""
    waiting_skew: Skew | None = None
    """Bytes that wait to be read, by subtask."""
    heaviest_keys: list[HeavyKey] | None = None
    """The keys with most of its time, the first one with the most. They are looked for on request."""
    waiting_bytes: int | None = None
    """Bytes that wait at both ends of its chain: arrived and not read, or emitted and without credit."""
    late: int | None = None
    """Records that came behind event time; None where it has no event time of its own."""
    failed: int | None = None
    """Records set aside because user code has failed; None where it sets none aside."""
    state_entries: int | None = None
    state_bytes: int | None = None
    """Bytes of its keyed state: an estimate from the size of an entry in checkpoints; None before there is one."""
    watermark: str | None = None
    """The lowest event time of its subtasks."""
    lag: float | None = None
    """Seconds by which that is behind the clock."""
    metrics: dict[str, Metric] = {}
    """Counters and gauges of the operator by name, those of user code among them."""


class InputFigures(msgspec.Struct, frozen=True):
    """Event time on an input of an operator, in the subtask that is farthest behind."""

    operator: str
    source: str
    """The operator that it comes from."""
    watermark: str
    lag: float | None
    subtask: int
    held_by: int
    """The subtask of `source` that holds it back."""
    holds: bool = False
    """True if this input is the one that holds its operator back."""
    stands: bool = False
    """True if it has not moved in the last seconds."""
    others_ahead: bool = False
    """True if another subtask of `source` is a minute of event time ahead."""
    held_by_split: int | None = None
    """The split of `held_by` that holds it back, where others of its splits are a minute ahead."""


class SourceFigures(msgspec.Struct, frozen=True):
    """What a source has read."""

    operator: str
    description: str
    records: int | None = None
    rate: float | None = None
    lag_records: float | None = None
    lag_seconds: float | None = None


class CheckpointFigures(msgspec.Struct, frozen=True):
    """A complete checkpoint. The four parts make up its duration."""

    id: int
    at: float
    path: str
    duration: float
    trigger: float
    alignment: float
    freeze: float
    write: float
    bytes: int
    full_bytes: int
    """Bytes with the files of earlier checkpoints that it refers to."""
    policy: str
    """The way in which it has ended: "aligned" or "unaligned"."""
    inflight_bytes: int = 0


class CheckpointFailure(msgspec.Struct, frozen=True):
    """A checkpoint that will never be complete."""

    id: int
    at: float
    reason: str
    failure: bool = True
    """False where it was given up for another reason than a failure of its own: a worker was lost, or a newer one is
    complete."""


class CheckpointUnderWay(msgspec.Struct, frozen=True):
    """A checkpoint under way: its age, the least advanced phase, and the workers that it waits for."""

    id: int
    age: float
    phase: str
    workers: list[int]


class PlaceOutage(msgspec.Struct, frozen=True):
    """A place that is out of reach, for which the job waits."""

    place: str
    reason: str
    tries: int
    age: float


class CheckpointsFigures(msgspec.Struct, frozen=True):
    """The checkpoints of a job. The newest are last."""

    completed: int = 0
    aborted: int = 0
    failed_in_a_row: int = 0
    under_way: list[CheckpointUnderWay] = []
    history: list[CheckpointFigures] = []
    failures: list[CheckpointFailure] = []
    waits_for: list[PlaceOutage] = []


class LoopFigures(msgspec.Struct, frozen=True):
    """A loop: what waits at its head, and what has gone around."""

    scope: str
    name: str
    feedback_waiting: int | None = None
    """Records of feedback that wait at its head."""
    feedback_spilled_bytes: int | None = None
    feedback_total: int | None = None
    """Records of feedback that its head has read."""
    feedback_rate: float | None = None
    round: int | None = None
    rounds: int | None = None
    waves: int | None = None
    """The number of waves that have looked for its end."""
    growth: float | None = None
    """Records by which `feedback_waiting` has grown in each of the last seconds."""


class StalledStep(msgspec.Struct, frozen=True):
    """A step that has not come back for long."""

    operator: str
    """The uid of the operator; empty where it is not known, between steps."""
    subtask: int
    seconds: float
    stack: str = ""
    work: str = "a step"
    """The work that it is: a step, or what comes between steps."""


class SubtaskFigures(msgspec.Struct, frozen=True):
    """A subtask of a chain, by the newest report of its worker."""

    chain: int
    operator: str
    """The uid of the first operator of the chain."""
    subtask: int
    records_in: int
    records_out: int
    busy: float | None
    busy_seconds: float
    under_way_seconds: float
    """The duration of a step that has not come back."""
    age_seconds: float
    """The age of the report."""
    queued_bytes: int
    unsent_bytes: int
    state_entries: int
    blocked: bool
    finished: bool
    waits_for: str
    """The reason why it does nothing; empty where it does something."""
    watermark: str
    inputs: list[InputFigures] = []
    metrics: dict[str, float] = {}


class JobSnapshot(msgspec.Struct, frozen=True):
    """A job at a moment."""

    at: float
    job: JobFigures
    sentence: str
    """What holds the job, or that nothing does, in one sentence."""
    graph: GraphShape
    operators: dict[str, OperatorFigures]
    """The figures of the operators, by uid."""
    inputs: list[InputFigures]
    sources: list[SourceFigures]
    loops: list[LoopFigures]
    checkpoints: CheckpointsFigures | None
    """None for a job that takes none."""
    slices: list[dict[str, Any]]
    """The parts of the job that its workers run: the fields of `SliceStatus`."""
    standbys: list[int] | None
    """The numbers of standbys that are ready, and of all; None where no worker is replaced alone."""
    failures: list[FailureFigures]
    """Failures, the newest last, with the restart or replacement that each has led to."""
    stalled: list[StalledStep]
    subtasks: list[SubtaskFigures] | None = None
    """The subtasks of all chains, where they were requested."""
    lag: LagFigures | None = None
    """The distance of the job from the end of its input; None where it is not known."""
    findings: list[Finding] = []
    """All that holds the job, the worst first. `sentence` is the text of the first one."""
    health: str = "good"
    """The worst health of the findings."""
    size: dict[str, Any] | None = None
    """The size of the job, as in its metrics: `to` and `stage` while it changes. None where it is not known."""
    format: int = 1
    """The version of this shape. Fields are only ever added."""
