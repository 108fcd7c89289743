"""How a worker joins a job, is told its part, reports, and leaves. The messages and the worker's half of the order.

    worker                          coordinator
    Hello(slot, address)      ->
                              <-    Welcome(epoch)          the newest hello of a slot wins; an older link is closed
                              <-    Deploy(plan, peers)     when all slots are filled
    Deployed                  ->
                              <-    Start                   when all have deployed
    Progress                  ->                            again and again
    SubtasksFinished          ->                            all tasks of the slice ended; what its sinks prepared
                              <-    Publish(prepared)       when all slices have ended; to one worker
    Published                 ->
    NotPublished              ->                            or the place of a sink is out of reach; it is told once more
                              <-    Settled(number)         with checkpoints: nobody will ask for it again
                              <-    Leave                   at the end, and whenever the job is over for another reason
    (closes)

`Failed` may come from a worker at any time. Messages are msgspec structs, tagged by name; fields are only ever added,
with defaults, so an older side can be read. The coordinator never unpickles `plan` or `prepared`.
"""

from __future__ import annotations

from enum import Enum, StrEnum

import msgspec

from tailrace.errors import ProtocolViolation
from tailrace.protocol.message import Message
from tailrace.state.format import Placed

# From a worker.


class Hello(Message, frozen=True):
    """A worker is there. `host` and `port` are where other workers reach it."""

    slot: int
    host: str
    port: int
    pid: int
    job: str
    incarnation: int
    launch: int = 1
    """Which start of the place's Spark job this is; an older one is not wanted any more."""
    place: int | None = None
    """The place that the Spark job was started for, where it is not that of the slot: a standby takes the slot."""
    executor: str = ""
    """The executor on that host that the process belongs to, where its environment says; empty where it does not, and in
    local mode, where all are in one."""


class UnderWay(msgspec.Struct, frozen=True, omit_defaults=True):
    """Work of a worker's own thread that has not come back. Times are int64 microseconds."""

    since: int
    """When it began, on the clock of `Progress.elapsed_micros`."""
    micros: int
    """For how long it has been under way."""
    vertex: int | None = None
    """The vertex whose step it is; None for what is done between steps: functions are opened, output is published."""
    operator: str | None = None
    """The operator whose code runs, where the user is to be told of it and where that is known."""
    stack: str = ""
    """Where the thread is, as lines of a traceback: only in the beats of which the user is to be told."""


class Heartbeat(Message, frozen=True):
    """A worker's process lives. Sent on a link of its own by a thread of its own; `slot`, which is the place that it was
    started for, and `pid` say whose."""

    slot: int
    pid: int
    under_way: UnderWay | None = None
    """What the worker's own thread has been at for a second or longer."""


class Deployed(Message, frozen=True):
    """The plan was read, functions are open, peers are connected."""


class InputTime(msgspec.Struct, frozen=True):
    """Event time on one input of a subtask: the lowest watermark of the channels of an edge that are neither idle nor
    ended, and the subtask that has sent it."""

    edge: int
    watermark: int
    subtask: int


PHASES = ("triggered", "aligning", "encoding", "writing")
"""How far a worker is with a checkpoint: it has not said; not all of its subtasks have cut; their state is not all encoded;
the storage has not made its file durable."""


class SubtaskReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures of one subtask since its start. Times are int64 microseconds."""

    vertex: int
    subtask: int
    records_in: int = 0
    records_out: int = 0
    records_sunk: int = 0
    """Those of `records_out` that went into sinks."""
    watermark: int = 0
    timed: bool = False
    source: bool = False
    busy_micros: int = 0
    queued_bytes: int = 0
    state_entries: int = 0
    blocked: bool = False
    finished: bool = False
    metrics: dict[str, float] = {}
    waits_for: str = ""
    """Why its last step did nothing (`task.subtask.idleness.Reason`); nothing where it did something."""
    unsent_bytes: int = 0
    """What it has emitted and its channels out have no credit for."""
    inputs: list[InputTime] = []
    under_way_micros: int = 0
    """For how long a step has been under way that had not come back when the process last gave a sign of life. It is not in
    `busy_micros`. The coordinator knows it from a `Heartbeat`: a worker reports between steps."""
    age_micros: int = 0
    """How old the other figures are. The coordinator says so, when it is asked."""

    @property
    def worked_micros(self) -> int:
        """How long it has worked, with the step that is under way."""
        return self.busy_micros + self.under_way_micros


class Progress(Message, frozen=True):
    """Figures of all subtasks of a worker."""

    subtasks: list[SubtaskReport]
    elapsed_micros: int
    refused: dict[str, int] = {}
    """Connections refused at the worker's port, by reason."""
    log_entries: int = 0
    """Of its history, as far as another worker may have to do it again; 0 where lost workers are not replaced alone."""
    log_bytes: int = 0
    kept_bytes: int = 0
    """What has gone to other workers since the newest complete checkpoint, and is kept for those that take their places."""
    phases: dict[int, str] = {}
    """How far the worker is with each checkpoint that it was asked for and has not made durable: `PHASES`."""


class SubtasksFinished(Message, frozen=True):
    """All subtasks of the slice ended. `prepared` is what is to be published, where there are no checkpoints: (uid of the
    sink, bytes)."""

    prepared: list[tuple[str, bytes]]
    more: bool = False
    """Whether this is a part of what was prepared, and others follow."""


class Published(Message, frozen=True):
    """Everything of a `Publish` is visible, but for what is `skipped`."""

    number: int = 0
    """That of the `Publish`."""
    skipped: bool = False
    """Whether something of it stays under cover: no sink of the dataflow can publish it, and the user has given it up."""


class NotPublished(Message, frozen=True):
    """The place of a sink is out of reach: not everything of a `Publish` is visible. It has to be told once more."""

    number: int
    tries: int
    """That of the `Publish`."""
    reason: str


class OperatorEvent(Message, frozen=True):
    """From one subtask of an operator to another, over the coordinator, which does not look inside."""

    vertex: int
    source: int
    target: int
    payload: bytes


class Failed(Message, frozen=True):
    """The worker's part failed. `kind` says what has failed, or who erred."""

    kind: FailureKind
    message: str
    operator: str | None = None
    subtask: int | None = None
    record: str | None = None
    peer: int | None = None
    """The slot of the peer that was lost, where that was the cause."""


# From the coordinator.


class Welcome(Message, frozen=True):
    """The worker holds its slot under this epoch."""

    epoch: int
    clock: int = 0
    """What time it is for the job (int64 microseconds since 1970), by its driver; 0 where nobody says."""


class Peer(msgspec.Struct, frozen=True):
    """Where a worker listens."""

    slot: int
    host: str
    port: int
    epoch: int


class Deploy(Message, frozen=True):
    """The worker's part. `plan` is opaque to the coordinator; the worker unpickles it."""

    plan: bytes
    peers: list[Peer]
    incarnation: int = 1
    """What every frame, file and commit of this attempt carries."""
    attempt: int = 0
    """How many times the slice of the slot was started anew before."""
    manifest: bytes = b""
    """The checkpoint to restore, as its manifest's bytes; empty for a fresh start."""
    folder: str = ""
    """The URL of the job's folder that it lies in; empty for this job's own."""
    own: bool = False
    """Whether its files are this run's own, so that the next checkpoint may refer to them."""


class Start(Message, frozen=True):
    """All workers are ready: run."""


class Publish(Message, frozen=True):
    """Make these visible: (uid of the sink, what its subtasks prepared)."""

    prepared: list[tuple[str, list[bytes | Placed]]]
    number: int = 0
    """That of the checkpoint; 0 for what the restored one had prepared, and where there are no checkpoints."""
    recover: list[str] = []
    """After a restart: the runs whose unpublished leftovers are to be removed; empty where nothing is."""
    more: bool = False
    """Whether this is a part, and others of the same number follow: only the last one is answered."""
    folder: str = ""
    """The URL of the job's folder in which the bytes are that are not here; empty for this job's own."""
    tries: int = 0
    """How often it was told before, and has come to nothing."""


class Settled(Message, frozen=True):
    """What was published with numbers from 1 to this one will never be asked for again: every checkpoint that has it is
    marked as published, or gone."""

    number: int
    restored: bool = False
    """Whether this goes for number 0 as well."""


class EndSources(Message, frozen=True):
    """A stop that drains: sources read nothing more, their input ends here."""


class Leave(Message, frozen=True):
    """The job is over for this worker."""

    reason: str


class PeerHello(Message, frozen=True):
    """The first message on a link between two workers, both ways: who calls."""

    slot: int
    epoch: int
    incarnation: int
    job: str


class FailureKind(StrEnum):
    """What has failed, or who erred."""

    USER = "user"
    """The user's code or data."""
    PROGRAM = "program"
    """The user's code, in a way that stays the same after every restart: its records cannot be pickled, say."""
    PEER = "peer"
    """Another worker: its link was lost, or it broke the protocol."""
    IMPORT = "import"
    """The worker cannot import something that the plan needs, or its executor lacks what any worker needs."""
    STATE = "state"
    """The checkpoint that was to be restored: it is damaged, or does not fit. Trying again does not help."""
    STORE = "store"
    """The storage of checkpoints is out of reach."""
    SINK = "sink"
    """The place that a sink writes to is out of reach."""
    INTERNAL = "internal"
    """We did."""

    # The coordinator's to find; a worker does not say them.
    WORKER = "worker"
    """A worker was lost."""
    MOVED = "moved"
    """A worker's machine is about to go, and the worker moves elsewhere."""
    CHECKPOINT = "checkpoint"
    """Too many checkpoints failed in a row."""
    SLOTS = "slots"
    """The slots were not filled in time, or Spark has ended."""
    FENCED = "fenced"
    """A newer start of the job has taken over."""
    SILENT = "silent"
    """A place that the job needs was out of reach for longer than it is patient."""

    @property
    def of_worker(self) -> bool:
        """Whether a worker may say it."""
        return self in _OF_WORKERS


_OF_WORKERS = frozenset(
    {
        FailureKind.USER,
        FailureKind.PROGRAM,
        FailureKind.PEER,
        FailureKind.IMPORT,
        FailureKind.STATE,
        FailureKind.STORE,
        FailureKind.SINK,
        FailureKind.INTERNAL,
    }
)


class Phase(Enum):
    """Where a worker stands."""

    JOINING = "joining"
    JOINED = "joined"
    DEPLOYED = "deployed"
    RUNNING = "running"
    FINISHED = "finished"
    LEFT = "left"


AFTER: dict[tuple[Phase, type[Message]], Phase] = {
    (Phase.JOINING, Welcome): Phase.JOINED,
    (Phase.JOINED, Deploy): Phase.DEPLOYED,
    (Phase.DEPLOYED, Start): Phase.RUNNING,
    (Phase.DEPLOYED, Publish): Phase.DEPLOYED,
    (Phase.RUNNING, Publish): Phase.RUNNING,
    (Phase.FINISHED, Publish): Phase.FINISHED,
    (Phase.DEPLOYED, Settled): Phase.DEPLOYED,
    (Phase.RUNNING, Settled): Phase.RUNNING,
    (Phase.FINISHED, Settled): Phase.FINISHED,
    (Phase.RUNNING, EndSources): Phase.RUNNING,
    (Phase.FINISHED, EndSources): Phase.FINISHED,
    (Phase.DEPLOYED, OperatorEvent): Phase.DEPLOYED,
    (Phase.RUNNING, OperatorEvent): Phase.RUNNING,
    (Phase.FINISHED, OperatorEvent): Phase.FINISHED,
}
"""Which message of this conversation is legal in which phase of a worker, and the phase after it. `Leave` is legal in all
of them."""


def next_phase(phase: Phase, message: Message) -> Phase:
    """The worker's phase after a message from the coordinator. Raises `ProtocolViolation` where it is not legal."""
    if isinstance(message, Leave):
        return Phase.LEFT
    after = AFTER.get((phase, type(message)))
    if after is None:
        raise ProtocolViolation(f"{type(message).__name__} came while the worker was {phase.value}")
    return after
