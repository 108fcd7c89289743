"""A worker as a machine: joins, deploys its slice, steps it, reports, leaves. Events (`task.events`) go in, and actions
(`task.actions`) come out. Its drivers are `runtime.worker`, which has sockets and a clock, and the simulator, which has
neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never, overload

from tailrace.elements.frames import decode as decode_frame
from tailrace.errors import ProtocolViolation
from tailrace.protocol.deployment import (
    Deploy,
    Deployed,
    Failed,
    FailureKind,
    Leave,
    OperatorEvent,
    Peer,
    Phase,
    Progress,
    Publish,
    Published,
    Settled,
    Start,
    SubtasksFinished,
    Welcome,
    next_phase,
)
from tailrace.protocol.recovery import Reset, WasReset
from tailrace.protocol.snapshot import Abort, Complete, Declined, Trigger
from tailrace.protocol.termination import (
    Advance,
    CallFinish,
    EndLoop,
    Release,
    StartRound,
    StartWave,
    StopRounds,
)
from tailrace.protocol.wire import AnyMessage
from tailrace.state.backend import Backend
from tailrace.state.manifest import decode_manifest
from tailrace.task.actions import (
    Action,
    ClosePeers,
    ConnectPeers,
    Exit,
    ReadPrepared,
    ReadState,
    ToCoordinator,
)
from tailrace.task.checkpoints import WorkerCheckpoints
from tailrace.task.events import (
    CoordinatorLost,
    CoordinatorSaid,
    DriverFailed,
    Encode,
    Event,
    Flush,
    FrameArrived,
    FreezeTook,
    MessageTooLarge,
    PeerLost,
    PeersConnected,
    PeersUnreachable,
    PreparedRead,
    PreparedUnreadable,
    ReportDue,
    StateNotWritten,
    StatePartRead,
    StateRead,
    StateUnreadable,
    StateWritten,
    Step,
)
from tailrace.task.faults import failed, fault_of, fault_outside_tasks
from tailrace.task.functions import with_own_functions
from tailrace.task.idle import Idle, Reason
from tailrace.task.jobspec import JobSpec
from tailrace.task.looping import Command
from tailrace.task.machine import Task
from tailrace.task.outside import Outside
from tailrace.task.publishing import Awaited, Publisher, in_parts
from tailrace.task.restore import Restorer
from tailrace.task.services import RandomFactory, Services
from tailrace.task.slice import Slice
from tailrace.task.spilling import Spill
from tailrace.task.tuning import Tuning


class Worker:
    """One worker slot's machine.

    Invariant K1: after `LEFT` no task is stepped and nothing is sent.
    Invariant K2: `Failed` is said at most once, and no task is stepped after it.
    Invariant K3: what it does is a function of its events and of what the world outside answered to user code during each.
    """

    def __init__(
        self,
        slot: int,
        load: Callable[[bytes], JobSpec],
        random_factory: RandomFactory,
        backend_factory: Callable[[JobSpec, str, int], Backend] | None = None,
        make_spill: Callable[[str | None], Spill] | None = None,
        outside: Outside | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self.slot = slot
        self.phase = Phase.JOINING
        self.epoch = 0
        self.failed = False
        self.slice: Slice | None = None
        self.spec: JobSpec | None = None
        self.actions: list[Action] = []
        self._closed = False
        self.close_errors: list[BaseException] = []
        """What user functions raised in `close`: reported by the driver, never the cause of a failure."""
        self._load = load
        self._random_factory = random_factory
        self._backend_factory = backend_factory
        self._make_spill = make_spill
        self._outside = outside if outside is not None else Outside()
        self._tuning = tuning if tuning is not None else Tuning()
        self._checkpoints: WorkerCheckpoints | None = None
        self._restorer: Restorer | None = None
        self._publisher: Publisher | None = None
        self._asked_first = 0
        """Which task is asked first what it has to do."""
        self._reading = 0
        """The number of the newest `ReadState`: what answers an older one does not count."""
        self._reading_prepared = 0
        """The number of the newest `ReadPrepared`, likewise."""
        self._peers: list[Peer] = []

    # Events.

    @overload
    def handle(self, event: Step) -> Idle | None: ...

    @overload
    def handle(self, event: Flush) -> bool: ...

    @overload
    def handle(self, event: Event) -> object: ...

    def handle(self, event: Event) -> object:
        """Lets an event happen; what follows from it is in `actions`. Of a step: None where something was done, else why
        not. Of a flush: whether something went. Raises `ProtocolViolation` where the coordinator said what must not come
        now."""
        match event:
            case Step():
                return self._step(event)
            case FrameArrived():
                self._frame(event.data, event.peer)
            case Flush():
                return self._flush()
            case Encode():
                self._encode(event.now, event.limit)
            case FreezeTook():
                self._freeze_took(event.vertex, event.micros)
            case ReportDue():
                self._report(event.busy, event.elapsed, event.refused)
            case CoordinatorSaid():
                self._control(event.message)
            case CoordinatorLost():
                if self.phase is not Phase.LEFT:
                    self._leave(f"lost the coordinator: {event.reason}")
            case MessageTooLarge():  # nobody may wait for it in vain
                what = f"worker {self.slot} cannot say {event.name}: {event.reason}"
                self._failed(failed(FailureKind.INTERNAL, what))
            case DriverFailed():
                self._failed(event.fault)
            case PeersConnected():
                if not self.failed and self.phase is Phase.DEPLOYED:
                    self._say(Deployed())
            case PeersUnreachable():
                self._failed(failed(FailureKind.PEER, event.reason))
            case PeerLost():
                self._peer_lost(event.peer, event.reason)
            case StatePartRead() | StateRead() | StateUnreadable():
                self._restore(event)
            case PreparedRead() | PreparedUnreadable():
                self._go_on_publishing(event)
            case StateWritten() | StateNotWritten():
                self._file_answered(event)
            case _:
                assert_never(event)
        return None

    def _control(self, message: AnyMessage) -> None:
        """The coordinator said something."""
        if self.phase is Phase.LEFT:
            return
        if isinstance(message, Reset):
            self._reset(message.attempt)
            return
        if self.failed and not isinstance(message, Leave):
            return  # the coordinator had not heard yet
        if isinstance(message, Advance | CallFinish | EndLoop | Release | StartRound | StartWave | StopRounds):
            if self.slice is not None and self.phase in (Phase.RUNNING, Phase.FINISHED) and not self.failed:
                self._guarded(lambda: self._command(message))
            return
        if isinstance(message, Trigger | Abort | Complete):
            self._guarded(lambda: self._checkpoint(message))
            return
        self.phase = next_phase(self.phase, message)
        if isinstance(message, Welcome):
            self.epoch = message.epoch
        elif isinstance(message, Deploy):
            self._guarded(lambda: self._deploy(message))
        elif isinstance(message, Start):
            pass  # from here on the driver steps the tasks
        elif isinstance(message, Publish):
            self._guarded(lambda: self._publish(message))
        elif isinstance(message, Settled):
            self._guarded(lambda: self._settled(message))
        elif isinstance(message, OperatorEvent):
            self._guarded(lambda: self._operator_event(message))
        elif isinstance(message, Leave):
            self._leave(message.reason)

    def _frame(self, data: bytes, peer: int) -> None:
        """Bytes from another worker. A broken frame is that worker's fault and fails the job, naming it."""
        if self.slice is None or self.failed or self.phase is Phase.LEFT:
            return
        try:
            self.slice.receive(decode_frame(data), peer)
        except ProtocolViolation as error:
            self._failed(failed(FailureKind.PEER, f"worker {peer} broke the protocol: {error}", peer))
        self._collect_sends()

    def _peer_lost(self, peer: int, reason: str) -> None:
        """Once everything is finished that is how it should be."""
        if self.phase in (Phase.RUNNING, Phase.DEPLOYED) and not self.failed:
            self._failed(failed(FailureKind.PEER, f"lost the connection to worker {peer}: {reason}", peer))

    def _restore(self, event: StatePartRead | StateRead | StateUnreadable) -> None:
        """The storage answers `ReadState`. What answers an older one does not count."""
        restorer = self._restorer
        if restorer is None or event.number != self._reading:
            return
        match event:
            case StatePartRead():
                if not self.failed:
                    self._guarded(lambda: restorer.part(event.part))
            case StateRead():
                if not self.failed:
                    self._restorer = None
                    self._guarded(restorer.finish)
                    self._guarded(self._open)
            case StateUnreadable():
                self._restorer = None
                self._unreadable(event)
            case _:
                assert_never(event)

    def _go_on_publishing(self, event: PreparedRead | PreparedUnreadable) -> None:
        """The storage answers `ReadPrepared`, likewise."""
        publisher = self._publisher
        if publisher is None or event.number != self._reading_prepared:
            return
        if isinstance(event, PreparedUnreadable):
            self._unreadable(event)
        elif not self.failed:
            self._guarded(lambda: self._published(publisher.read(event.data)))

    def _unreadable(self, event: StateUnreadable | PreparedUnreadable) -> None:
        self._failed(failed(FailureKind.STATE if event.fatal else FailureKind.STORE, event.reason))

    def _file_answered(self, event: StateWritten | StateNotWritten) -> None:
        """The storage answers `WriteState`."""
        checkpoints = self._checkpoints
        if checkpoints is None:
            return
        if isinstance(event, StateWritten):
            ack = checkpoints.written(event.checkpoint, event.now)
            if ack is not None:
                self._say(ack)
        elif checkpoints.knows(event.checkpoint):
            self._say(Declined(event.checkpoint, event.reason))

    # Steps.

    @property
    def stepping(self) -> bool:
        """Whether tasks may be stepped now. With checkpoints they live on when they have finished: what they hold belongs
        into every checkpoint to come."""
        running = self.phase is Phase.RUNNING or (self.phase is Phase.FINISHED and self._checkpoints is not None)
        return running and not self.failed

    @property
    def incarnation(self) -> int:
        """The incarnation that the worker's tasks run under, 0 while there are none."""
        return self.slice.incarnation if self.slice is not None else 0

    @property
    def encoding(self) -> bool:
        """Whether there is a snapshot to be encoded."""
        if not self.stepping:
            return False
        if self._checkpoints is not None and self._checkpoints.logs_to_encode:
            return True
        return any(t.snapshot is not None and not t.snapshot.done for t in self.tasks())

    def tasks(self) -> list[Task]:
        """The tasks in the order in which they are asked: downstream first. Around a loop that would never end: when its
        head has read what came back, those upstream of it are asked before all that follows from that. So sources are
        read and checkpoints begin however busy a loop is."""
        tasks = self.slice.tasks if self.slice is not None else []
        first = self._asked_first
        return tasks[first:] + tasks[:first] if first else tasks

    def _step(self, event: Step) -> Idle | None:
        """One step of one task; a failure of user code becomes `Failed`. The step after everybody's last one closes the
        user's functions: what the tasks sent is on its way by then, and the end of the job, which is a matter of seconds,
        need not wait for them."""
        slice, now = self.slice, event.now
        assert slice is not None
        if self.phase is Phase.RUNNING and slice.finished:
            self._finish()
            return None
        task = slice.by_vertex[event.vertex]
        try:
            idle = slice.step(task, now, event.budget)
            if idle is None:
                self._asked_first = slice.tasks.index(task) + 1 if task.took_feedback else 0
            self._collect(now)
        except BaseException as error:
            self._fail_by(error, task.vertex.name)
            return Idle(Reason.FINISHED)
        return idle

    def _encode(self, now: int, limit: int) -> None:
        """Encodes about `limit` more entries of a snapshot, or of a log."""
        for task in self.tasks():
            if task.snapshot is not None and not task.snapshot.done:
                try:
                    task.encode(now, limit)
                    self._collect(now)
                except BaseException as error:
                    self._fail_by(error, task.vertex.name)
                return
        if self._checkpoints is not None:
            try:
                self.actions.extend(self._checkpoints.encode_logs(limit, now))
            except BaseException as error:
                self._fail_by(error)

    def _freeze_took(self, vertex: int, micros: int) -> None:
        if self._checkpoints is not None and self.slice is not None:
            self._checkpoints.froze(self.slice.by_vertex[vertex], micros)

    def _flush(self) -> bool:
        """Nothing else is to do. True when something gathered went."""
        if self.slice is None or not self.stepping:
            return False
        try:
            flushed = self.slice.flush()
        except BaseException as error:
            self._fail_by(error)
            return False
        self._collect_sends()
        if not flushed:
            self._say_idle()
        return flushed

    def _say_idle(self) -> None:
        """What has come to rest here is said of the loop nests."""
        assert self.slice is not None
        for said in self.slice.nests.idle() if self.slice.nests else ():
            self._say(said)

    def _report(self, busy: dict[int, int], elapsed: int, refused: dict[str, int]) -> None:
        if self.slice is not None and self.phase in (Phase.RUNNING, Phase.FINISHED) and not self.failed:
            self._say(Progress(self.slice.reports(busy), elapsed, refused))
            for said in self.slice.nests.times():
                self._say(said)

    # Inside.

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            self._failed(fault_outside_tasks(error, self.slot, self._written))

    def _deploy(self, message: Deploy) -> None:
        spec = self.spec = self._load(message.plan)
        make = self._backend_factory
        services = Services(
            random_factory=self._random_factory,
            job=spec.job,
            incarnation=message.incarnation,
            run_id=spec.run_id,
            seed=spec.seed,
            max_parallelism=spec.plan.graph.max_parallelism,
            copy_records=spec.copy_records,
            debug=spec.debug,
            allow_dropped_state=spec.allow_dropped_state,
            checkpointing=spec.checkpointing,
            make_spill=self._make_spill,
            outside=self._outside,
            tuning=self._tuning,
            make_backend=None if make is None else lambda uid, subtask: make(spec, uid, subtask),
        )
        plan = with_own_functions(spec.plan, keep_first=True)
        self.slice = Slice(plan, self.slot, message.attempt, services, spec.memory)
        self._publisher = Publisher(self.slot, spec.plan, services)
        self._peers = message.peers
        if spec.checkpointing:
            self._checkpoints = WorkerCheckpoints(self.slot, self.epoch, services, self.slice.tasks)
        if not message.manifest:
            self._open()
            return
        manifest = decode_manifest(message.manifest, "the manifest to restore")
        self._restorer = Restorer(plan, self.slice.tasks, manifest, message.own)
        self._reading += 1
        self.actions.append(ReadState(self._reading, message.manifest, message.folder, self._restorer.wanted()))

    def _open(self) -> None:
        """Everything that there is to restore is restored."""
        assert self.slice is not None
        if self.failed:
            return
        self.slice.open()
        wanted = self.slice.peers()
        self.actions.append(ConnectPeers(tuple(peer for peer in self._peers if peer.slot in wanted)))
        self._collect()

    def _checkpoint(self, message: Trigger | Abort | Complete) -> None:
        if self.slice is None or self._checkpoints is None:
            return
        number = message.checkpoint
        if isinstance(message, Trigger):
            self.slice.trigger(message.cut)
        elif isinstance(message, Complete):
            self.slice.confirm(number)
        else:
            self.slice.abort(number)
            self.actions.extend(self._checkpoints.abort(number))

    def _command(self, message: Command) -> None:
        assert self.slice is not None
        self.slice.nests.command(message)
        self._collect()
        if not self.stepping:
            self._say_idle()  # the tasks here have finished, and others of the nest have not

    def _operator_event(self, message: OperatorEvent) -> None:
        if self.slice is not None:
            self.slice.operator_event(message.vertex, message.source, message.payload)
            self._collect()

    def _reset(self, attempt: int) -> None:
        """The job starts anew in this process: nothing of what ran here stays."""
        self._close()
        if self._checkpoints is not None:
            self.actions.extend(self._checkpoints.drop_all())
        self.actions.append(ClosePeers())
        self.slice = self.spec = self._checkpoints = self._restorer = self._publisher = None
        self._reading_prepared += 1  # what was asked for before answers nobody any more
        self.failed = self._closed = False
        self.phase = Phase.JOINED
        self._say(WasReset(attempt))

    def _publish(self, message: Publish) -> None:
        assert self._publisher is not None
        self._published(self._publisher.publish(message))

    def _published(self, found: list[Published | Awaited]) -> None:
        for one in found:
            if isinstance(one, Published):
                self._say(one)
            else:
                self._reading_prepared += 1
                self.actions.append(ReadPrepared(self._reading_prepared, one.folder, one.wanted))

    def _settled(self, message: Settled) -> None:
        if self._publisher is not None:
            self._publisher.settled(message)

    def _finish(self) -> None:
        assert self.slice is not None
        self.phase = Phase.FINISHED
        if self._checkpoints is not None:  # functions stay open for the last checkpoint; sinks prepare at its cut
            self._say(SubtasksFinished([]))
            return
        self._close()
        self._say_idle()
        *parts, last = in_parts([one for task in self.slice.tasks for one in task.prepared()])
        for part in parts:
            self._say(SubtasksFinished(part, more=True))
        self._say(SubtasksFinished(last))

    def _leave(self, reason: str) -> None:
        self.phase = Phase.LEFT
        self._close()
        if self._checkpoints is not None:
            self.actions.extend(self._checkpoints.drop_all())
        self.actions.append(Exit(reason))

    def _close(self) -> None:
        if self.slice is not None and not self._closed:
            self._closed = True
            self.close_errors = self.slice.close()

    def _fail_by(self, error: BaseException, operator: str | None = None) -> None:
        self._failed(fault_of(error, self.slot, operator, self._written))

    def _written(self, operator: str) -> str:
        """Where an operator of this name is written; nothing where there are several."""
        nodes = () if self.spec is None else self.spec.plan.graph.nodes
        found = {node.written for node in nodes if node.name == operator}
        return found.pop() if len(found) == 1 else ""

    def _failed(self, fault: Failed) -> None:
        """Only the first failure of an attempt is told."""
        if not self.failed and self.phase is not Phase.LEFT:
            self.failed = True
            self._say(fault)

    def _say(self, message: AnyMessage) -> None:
        self.actions.append(ToCoordinator(message))

    def _collect_sends(self) -> None:
        if self.slice is not None and self.slice.actions:
            self.actions.extend(self.slice.actions)
            self.slice.actions.clear()

    def _collect(self, now: int = 0) -> None:
        """What the tasks want done becomes actions of the worker."""
        if self.slice is None:
            return
        self._collect_sends()
        if self.slice.nests:
            for said in self.slice.nests.found():
                self._say(said)
        for task in self.slice.tasks:
            source = task.chain.source
            if source is not None and source.events:
                for target, payload in source.events:
                    self._say(OperatorEvent(task.vertex.id, self.slot, target, payload))
                source.events.clear()
            if task.cuts.declined:
                for checkpoint in task.cuts.declined:
                    self._say(Declined(checkpoint, f"{task.id}: a later checkpoint overtook it"))
                task.cuts.declined.clear()
            if task.snapshot is not None and self._checkpoints is not None:
                self.actions.extend(self._checkpoints.collect(task, now))
