"""How a worker joins a job, receives its part, reports, and leaves. The messages and the worker's half of the order.

    worker                          coordinator
    Hello(slot, address)      ->
                              <-    Welcome(epoch)          the newest hello of a slot wins; an older link is closed
                              <-    Deploy(plan, peers)     when all slots are filled
    Deployed                  ->
                              <-    Start                   when all have deployed
    Progress                  ->                            again and again
    SubtasksFinished          ->                            all tasks of the slice ended; what its sinks prepared
                              <-    Publish(prepared)       when all slices have ended; to each what its sinks prepared
    Published                 ->
    NotPublished              ->                            or the sink has failed; it is sent once more
                              <-    Settled(number)         with checkpoints: it will never be sent again
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
    """A request of a worker to join. Other workers reach it at `host` and `port`."""

    slot: int
    host: str
    port: int
    pid: int
    job: str
    incarnation: int
    launch: int = 1
    """The number of this start of the place's Spark job. The coordinator refuses an older one."""
    place: int | None = None
    """The place that the Spark job was started for, where it is not that of the slot: a standby takes the slot."""
    executor: str = ""
    """The executor on that host that the process belongs to. Empty where the environment does not name it, and in local
    mode, where all processes are in one executor."""


class UnderWay(msgspec.Struct, frozen=True, omit_defaults=True):
    """Work of a worker's own thread that has not come back. Times are int64 microseconds."""

    since: int
    """The time at which it began, on the clock of `Progress.elapsed_micros`."""
    micros: int
    """The duration until now."""
    vertex: int | None = None
    """The vertex whose step it is; None for work between steps: functions are opened, output is published."""
    operator: str | None = None
    """The operator whose code runs, where it is known and the user is to be informed of it."""
    stack: str = ""
    """The position of the thread, as lines of a traceback. Only in heartbeats of which the user is to be informed."""


class Heartbeat(Message, frozen=True):
    """A sign of life of a worker's process. A thread of its own sends it on a link of its own. `slot` (the place that the
    process was started for) and `pid` identify the process."""

    slot: int
    pid: int
    under_way: UnderWay | None = None
    """Work that the worker's own thread has been at for a second or longer."""
    leaving: bool = False
    """True if Spark has decommissioned the executor of the process, as far as the process sees it."""


class ThreadStack(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of a thread of a worker's process, as lines of a traceback."""

    thread: str
    """The name of the thread; "worker" for the worker's own."""
    stack: str
    operator: str | None = None
    """The operator whose code runs, where it is one's."""


class KeyTime(msgspec.Struct, frozen=True):
    """The number of looks at the worker's own thread at which it worked on a key of an operator."""

    operator: str
    """The uid of the operator."""
    key: str
    looks: int


class Inspection(Message, frozen=True):
    """The answer to an `Inspect`, on the link of the signs of life, from the thread that gives them: also where the worker's
    own thread does not come back from user code."""

    number: int
    slot: int
    """The place that the process was started for."""
    pid: int
    threads: list[ThreadStack] = []
    keys: list[KeyTime] = []
    """The keys with the most time, where they were requested."""
    looks: dict[str, int] = {}
    """All looks at which an operator worked on a key, by its uid."""


class Deployed(Message, frozen=True):
    """A report of a worker: it has read the plan, its functions are open, its peers are connected."""


class InputTime(msgspec.Struct, frozen=True):
    """Event time on one input of a subtask: the lowest watermark of the channels of an edge that are neither idle nor
    ended, and the subtask that has sent it."""

    edge: int
    watermark: int
    subtask: int


PHASES = ("triggered", "aligning", "encoding", "writing")
"""The phases of a checkpoint in a worker: the worker has not reported one; not all of its subtasks have cut; their state is
not all encoded; the storage has not made its file durable."""


BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0,
)  # fmt: skip
"""The upper ends of the buckets of a histogram of user code; one more bucket is behind the last."""
BUCKET, SUM = ".bucket.", ".sum"
"""The parts between the name of a histogram and the number of a bucket, and behind its name, in names of counters."""


class OperatorReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures of an operator inside a subtask. None: not counted, since the operator runs as one function with another."""

    node: int
    records_in: int | None = None
    records_out: int | None = None
    state_entries: int = 0
    gauges: list[str] = []
    """The names of its metrics that are gauges; the others only grow."""
    state_bytes: int | None = None
    """An estimate from the size of an entry in checkpoints; None before there is one."""


class SubtaskReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures of one subtask since its start. Times are int64 microseconds."""

    vertex: int
    subtask: int
    records_in: int = 0
    records_out: int = 0
    records_sunk: int = 0
    """Records of `records_out` that went into sinks."""
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
    """The reason why its last step did nothing (`task.subtask.idleness.Reason`); empty where the step did something."""
    unsent_bytes: int = 0
    """Bytes that it has emitted and for which its output channels have no credit."""
    inputs: list[InputTime] = []
    under_way_micros: int = 0
    """The duration of a step that had not come back at the last sign of life of the process. It is not in `busy_micros`.
    The coordinator knows it from a `Heartbeat`: a worker reports between steps."""
    operators: list[OperatorReport] = []
    """The figures of its operators."""
    age_micros: int = 0
    """The age of the other figures. The coordinator sets it when the figures are requested."""

    @property
    def worked_micros(self) -> int:
        """The time that the subtask has worked, with the step that is under way."""
        return self.busy_micros + self.under_way_micros


class PrintedLine(msgspec.Struct, frozen=True):
    """A line that user code has printed in a step of a task, or a record that it has logged."""

    vertex: int
    """The vertex of the task; -1 outside of steps."""
    subtask: int
    text: str
    level: int = 0
    """The level of a record, as `logging` numbers it; 0 for a printed line."""
    logger: str = ""
    """The name of its logger."""


class Progress(Message, frozen=True):
    """Figures of all subtasks of a worker."""

    subtasks: list[SubtaskReport]
    elapsed_micros: int
    refused: dict[str, int] = {}
    """Connections refused at the worker's port, by reason."""
    log_entries: int = 0
    """Entries of its history that another worker may have to do again; 0 where lost workers are not replaced alone."""
    log_bytes: int = 0
    kept_bytes: int = 0
    """Bytes that have gone to other workers since the newest complete checkpoint. The worker keeps them for replacements of
    those workers."""
    phases: dict[int, str] = {}
    """The phase (`PHASES`) of each checkpoint that the worker was requested to take and has not made durable."""
    log_left: int | None = None
    """Bytes of memory that are left for its history; None where there is no limit, or no history."""
    copied_bytes: int = 0
    """Bytes of the histories of other workers that it knows, in memory and on disk."""
    printed: list[PrintedLine] = []
    """The first lines that user code has printed since the last report."""
    lines_left_out: int = 0
    """Lines that it has printed beside them; they are in the worker's own output."""


class SubtasksFinished(Message, frozen=True):
    """A report of a worker: all subtasks of the slice ended. `prepared` is the output to publish, where there are no
    checkpoints: (uid of the sink, bytes)."""

    prepared: list[tuple[str, bytes]]
    more: bool = False
    """True if this is a part of what was prepared, and more parts follow."""
    one_publisher: list[str] = []
    """The uids of sinks for which one worker publishes what all subtasks have prepared."""


class Published(Message, frozen=True):
    """A report of a worker: everything of a `Publish` is visible, except skipped output."""

    number: int = 0
    """The number of the `Publish`."""
    skipped: bool = False
    """True if some of the output stays hidden: no sink of the dataflow can publish it, and the user has given it up."""
    part: int = 0
    """The part of the `Publish`."""


class NotPublished(Message, frozen=True):
    """A report of a worker: the sink has failed, and not everything of a `Publish` is visible. The coordinator has to send
    the `Publish` once more."""

    number: int
    tries: int
    """The tries of the `Publish`."""
    reason: str
    part: int = 0
    """The part of the `Publish`."""
    operator: str = ""
    """The name of the sink."""
    traceback: str = ""
    """The user's part of the traceback."""


class OperatorEvent(Message, frozen=True):
    """A message of one subtask of an operator to another. It goes over the coordinator, which does not look inside."""

    vertex: int
    source: int
    target: int
    payload: bytes


class Failed(Message, frozen=True):
    """A report of a worker: its part failed. `kind` names what has failed, or the party that erred."""

    kind: FailureKind
    message: str
    operator: str | None = None
    subtask: int | None = None
    record: str | None = None
    peer: int | None = None
    """The slot of the peer that was lost, where that was the cause."""
    error: str = ""
    """The class of the exception that user code raised, where that was the cause."""
    takes_policy: bool = False
    """True if the verb of the operator takes a policy for records that fail."""
    capsule: bytes = b""
    """The capsule of the failed call; empty where none is kept."""
    capsule_name: str = ""
    """The name of its file, in the folder of the job."""


# From the coordinator.


class Welcome(Message, frozen=True):
    """A message to a worker: it holds its slot under this epoch."""

    epoch: int
    clock: int = 0
    """The time of day for the job (int64 microseconds since 1970), by its driver; 0 where the driver gives none."""
    waits: bool = False
    """True if the worker is to wait for another coordinator where this one is lost (`protocol.succession`)."""


class Peer(msgspec.Struct, frozen=True):
    """The address at which a worker listens."""

    slot: int
    host: str
    port: int
    epoch: int
    executor: str = ""
    """The executor in which the worker runs, with its host; empty where it is not known."""

    @property
    def home(self) -> str:
        """The executor as the unit that is lost: a worker whose executor is not known counts as the only one in its own."""
        return self.executor or f"worker {self.slot}"


class Deploy(Message, frozen=True):
    """A command to a worker, with its part of the job. `plan` is opaque to the coordinator; the worker unpickles it."""

    plan: bytes
    peers: list[Peer]
    incarnation: int = 1
    """The number that every frame, file and commit of this attempt carries."""
    attempt: int = 0
    """The number of times that the slice of the slot was started anew before."""
    manifest: bytes = b""
    """The manifest of the checkpoint to restore, as bytes; empty for a fresh start."""
    folder: str = ""
    """The URL of the job's folder in which that checkpoint lies; empty for this job's own."""
    own: bool = False
    """True if the checkpoint's files are this run's own, so that the next checkpoint may refer to them."""
    noted: list[str] = []
    """The names of operators whose user code has failed before: their calls are noted, for capsules."""


class Inspect(Message, frozen=True):
    """A request for the stacks of all threads of a worker's process. It goes to the thread that gives signs of life, on its
    link. `seconds`: for so long the thread looks on which keys the worker's own thread works."""

    number: int
    seconds: float = 0.0


class Start(Message, frozen=True):
    """A command to a worker: run, all workers are ready."""


class Publish(Message, frozen=True):
    """A command to a worker: make this output visible, (uid of the sink, what its subtasks prepared), and then remove what
    was not published."""

    prepared: list[tuple[str, list[bytes | Placed]]]
    number: int = 0
    """The number of the checkpoint; 0 for output of the restored checkpoint, and where there are no checkpoints."""
    recover: list[str] = []
    """Runs whose unpublished leftovers are to be removed, after a restart; empty where there are none."""
    folder: str = ""
    """The URL of the job's folder with the bytes that are not in this message; empty for this job's own."""
    tries: int = 0
    """The number of earlier sends of this `Publish` that have failed."""
    part: int = 0
    """The place of the message among those of this number to this worker."""


class Settled(Message, frozen=True):
    """A message to a worker: output that was published with numbers from 1 to this one will never be sent again. Every
    checkpoint that has it is marked as published, or gone."""

    number: int
    restored: bool = False
    """True if this goes for number 0 as well."""


class EndSources(Message, frozen=True):
    """A command to a worker, for a stop that drains: sources read nothing more, their input ends here."""


class Leave(Message, frozen=True):
    """A command to a worker: leave, the job is over for it."""

    reason: str


class PeerHello(Message, frozen=True):
    """The first message on a link between two workers, both ways: it names its sender."""

    slot: int
    epoch: int
    incarnation: int
    job: str


class FailureKind(StrEnum):
    """The kinds of failures, by what has failed or by the party that erred."""

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
    """A fault of Tailrace itself."""

    # Kinds that only the coordinator finds; a worker does not report them.
    WORKER = "worker"
    """A worker was lost."""
    RESIZED = "resized"
    """Nothing has failed: the job changes its size."""
    MOVED = "moved"
    """A worker's machine is about to go, and the worker moves elsewhere."""
    CHECKPOINT = "checkpoint"
    """Too many checkpoints failed in a row."""
    SLOTS = "slots"
    """The slots were not filled in time, or Spark has ended."""
    FENCED = "fenced"
    """A newer start of the job has taken over."""
    SILENT = "silent"
    """A place that the job needs was out of reach for longer than the job's patience."""

    @property
    def of_worker(self) -> bool:
        """True if a worker may report this kind."""
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
    """The phases of a worker."""

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
"""The messages of this conversation that are legal in each phase of a worker, with the phase after each. `Leave` is legal
in all of them."""


PhaseMessage = Welcome | Deploy | Start | Publish | Settled | EndSources | OperatorEvent | Leave
"""The messages to a worker of this conversation: each is legal in some phases only."""


def next_phase(phase: Phase, message: PhaseMessage) -> Phase:
    """The worker's phase after a message from the coordinator. Raises `ProtocolViolation` where it is not legal."""
    if isinstance(message, Leave):
        return Phase.LEFT
    after = AFTER.get((phase, type(message)))
    if after is None:
        raise ProtocolViolation(f"{type(message).__name__} came while the worker was {phase.value}")
    return after
