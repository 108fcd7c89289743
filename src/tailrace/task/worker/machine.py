"""A worker as a machine: joins, runs attempts of its job, reports, leaves. Events (`task.contract.events`) go in, and
actions (`task.contract.actions`) come out. Its drivers are `runtime.worker.main_loop`, which has sockets and a clock, and
the simulator, which has neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import assert_never, overload

from tailrace.elements.frame_codec import decode as decode_frame
from tailrace.errors import ProtocolViolation, TailraceError
from tailrace.protocol.deployment import (
    Deploy,
    EndSources,
    Failed,
    FailureKind,
    Leave,
    OperatorEvent,
    Phase,
    PhaseMessage,
    Publish,
    Settled,
    Start,
    SubtasksFinished,
    Welcome,
    next_phase,
)
from tailrace.protocol.message_codec import (
    AttemptCommand,
    FromWorker,
    NestCommand,
    StandbyCommand,
    SuccessionCommand,
    ToWorker,
)
from tailrace.protocol.recovery import Reset, WasReset
from tailrace.protocol.replay import Resume, Severed
from tailrace.protocol.standby import TakeSlot
from tailrace.state.backend import Backend
from tailrace.task.channels.services import RandomFactory, Services, Shared
from tailrace.task.channels.spilling import MakeSpill
from tailrace.task.contract.actions import Action, ClosePeers, Exit, ToCoordinator
from tailrace.task.contract.events import (
    CallsAnswered,
    CoordinatorFound,
    CoordinatorLost,
    CoordinatorSaid,
    DriverFailed,
    Encode,
    Event,
    Flush,
    FrameArrived,
    FreezeTook,
    MessageTooLarge,
    PeerBack,
    PeerLost,
    PeersConnected,
    PeersUnreachable,
    PlacedRead,
    PlacedUnreadable,
    ReaderWoken,
    ReportDue,
    SinkAnswered,
    StateNotWritten,
    StatePartRead,
    StateRead,
    StateUnreadable,
    StateWritten,
    Step,
)
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.contract.outside import Outside
from tailrace.task.contract.tuning import Tuning
from tailrace.task.failover.standby import Standing
from tailrace.task.failover.standby_mirrors import Mirror, backends
from tailrace.task.slice.machine import Slice
from tailrace.task.subtask.idleness import Idle, Reason
from tailrace.task.subtask.machine import Task
from tailrace.task.worker.attempt import Attempt, Urgency
from tailrace.task.worker.attribution import failure, fault_of, fault_outside_tasks, with_call, with_policy
from tailrace.task.worker.conversation import Conversation
from tailrace.task.worker.hot_standby import HotStandby
from tailrace.task.worker.task_services import services_of


class Worker:
    """The machine of one worker slot: it decides which event counts in which phase, and what caused an error. The work
    itself is done by an `Attempt`.

    Invariant K1: after `LEFT` no task is stepped and nothing is sent.
    Invariant K2: `Failed` is sent at most once in an attempt, and no task is stepped after it.
    Invariant K3: what a worker does is a function of its events and of what the world outside answered to user code
    during each.
    """

    def __init__(
        self,
        slot: int,
        load: Callable[[bytes], JobSpec],
        random_factory: RandomFactory,
        backend_factory: Callable[[JobSpec, str, int], Backend] | None = None,
        make_spill: MakeSpill | None = None,
        outside: Outside | None = None,
        tuning: Tuning | None = None,
        shared: Shared | None = None,
    ) -> None:
        self.slot = slot
        self.phase = Phase.JOINING
        self.epoch = 0
        self.failed = False
        self.spec: JobSpec | None = None
        self.actions: list[Action] = []
        self.close_errors: list[BaseException] = []
        """Errors that user functions raised in `close`. The driver reports them; they never cause a failure."""
        self._attempt: Attempt | None = None
        """The attempt that runs here, from a `Deploy` to the next `Reset`."""
        self._numbers = itertools.count(1)
        """Numbers of requests to the storage, through all attempts."""
        self._random_factory = random_factory
        self._backend_factory = backend_factory
        self._make_spill = make_spill
        services = lambda spec: self.services_of(spec, None)  # noqa: E731 - for slices that are not deployed
        self._standing = Standing(slot, load, services, backend_factory, self._numbers)
        text_of = lambda error: fault_outside_tasks(error, self.slot, self._place_of).message  # noqa: E731
        self._hot = HotStandby(self._standing, self._numbers, self.services_of, self._require, text_of)
        self._outside, self._shared = Outside() if outside is None else outside, shared
        self._tuning = tuning if tuning is not None else Tuning()
        self._conversation = Conversation()

    # Events.

    @overload
    def handle(self, event: Step) -> Idle | None: ...

    @overload
    def handle(self, event: Flush) -> bool: ...

    @overload
    def handle(self, event: Event) -> object: ...

    def handle(self, event: Event) -> object:
        """Handles an event, and adds the resulting actions to `actions`. A step returns None if something was done, else
        the reason why not. A flush returns whether something was sent. Raises `ProtocolViolation` if the coordinator sent
        a message that must not come now."""
        match event:
            case Step():
                return self._step(event)
            case FrameArrived():
                self._frame(event.data, event.peer)
            case Flush():
                return self._flush(event.answers)
            case Encode():
                self._encode(event.now, event.limit)
            case FreezeTook():
                if self._attempt is not None:
                    self._attempt.froze(event.vertex, event.micros)
            case ReportDue():
                self._report(event)
            case CoordinatorSaid():
                self._control(event.message)
            case CoordinatorLost():
                self._coordinator_lost(event.reason)
            case CoordinatorFound():
                if self.waits:
                    self.actions.append(ToCoordinator(self._conversation.rejoin()))
            case MessageTooLarge():  # a peer waits for this message: fail instead
                what = f"worker {self.slot} cannot send {event.name}: {event.reason}"
                self._fail(failure(FailureKind.INTERNAL, what))
            case DriverFailed():
                self._fail(event.fault)
            case PeersConnected():
                self._links_up()
            case PeerBack():
                if (attempt := self._attempt) is not None and not self.failed:
                    self._guard(lambda: attempt.peer_replaced(event.peer))
            case PeersUnreachable():
                if self._hot.followed is not None:
                    self._hot.give_up(event.reason)
                else:
                    self._fail(failure(FailureKind.PEER, event.reason))
            case PeerLost():
                self._peer_lost(event.peer, event.reason)
            case StatePartRead() | StateRead() | StateUnreadable():
                self._restore(event)
            case PlacedRead() | PlacedUnreadable():
                self._take_placed(event)
            case StateWritten() | StateNotWritten():
                self._file_answered(event)
            case CallsAnswered():
                if self._attempt is not None:
                    self._attempt.calls_answered(event.uid, event.count)
            case ReaderWoken():
                if self._attempt is not None:
                    self._attempt.reader_woken(event.uid)
            case SinkAnswered():
                self._sink_answered(event)
            case _:
                assert_never(event)
        return None

    @property
    def succeeds(self) -> bool:
        """True if the worker is to wait for another coordinator where its own is lost."""
        return self._conversation.waits

    @property
    def waits(self) -> bool:
        """True while the worker goes on without a coordinator, and waits for another one."""
        return self._conversation.broken and self.phase is not Phase.LEFT

    def _coordinator_lost(self, reason: str) -> None:
        """Waits for another coordinator, where the job has one that can go on. Where it waits already: leaves."""
        conversation = self._conversation
        if conversation.waits and not conversation.broken and self.phase not in (Phase.JOINING, Phase.LEFT):
            conversation.broken = True
        elif self.phase is not Phase.LEFT:
            self._leave(f"lost the coordinator: {reason}")

    def _control(self, message: ToWorker) -> None:
        """Handles a message of the coordinator."""
        if self.phase is Phase.LEFT:
            return
        if isinstance(message, SuccessionCommand):
            if self.phase is not Phase.JOINING:  # else it was for the place that this standby held before
                self.actions += self._conversation.receive(message)
            return
        self._conversation.note_received()
        if self.failed and not isinstance(message, Reset | Leave):
            return  # sent before the coordinator received the failure
        attempt = self._attempt
        match message:
            case Reset():
                self._reset(message.attempt)
            case Resume():
                self.phase = next_phase(self.phase, message.deploy)
                self._guard(lambda: self._resume(message))
            case _ if isinstance(message, StandbyCommand):
                self._of_a_standby(message)
            case _ if isinstance(message, AttemptCommand):
                if attempt is not None:
                    self._guard(lambda: attempt.handle(message))
            case _ if isinstance(message, NestCommand):
                if attempt is not None and self.phase in (Phase.RUNNING, Phase.FINISHED):
                    self._guard(lambda: self._command(attempt, message))
            case _:
                self._of_a_phase(message)

    def _of_a_phase(self, message: PhaseMessage) -> None:
        """Handles a message that is legal in some phases only."""
        self.phase = next_phase(self.phase, message)
        attempt = self._attempt
        match message:
            case Welcome():
                self.epoch = message.epoch
                self._conversation.begin(self.slot, message.epoch, message.waits)
            case Deploy():
                self._guard(lambda: self._deploy(message))
            case Start():
                pass  # from here on the driver steps the tasks
            case Leave():
                self._leave(message.reason)
            case Publish() | Settled() | OperatorEvent() | EndSources():
                if attempt is not None:  # there is one in the phases in which such a message may come
                    self._guard(lambda: attempt.handle(message))
            case _:
                assert_never(message)

    def _command(self, attempt: Attempt, message: NestCommand) -> list[Action]:
        actions = attempt.command(message)
        # When all tasks here have finished, nothing flushes here any more, though other tasks of the nest may still run.
        return actions if self.stepping else [*actions, *attempt.at_rest()]

    def _frame(self, data: bytes, peer: int) -> None:
        """Takes bytes from another worker. A broken frame is that worker's fault and fails the job, naming it."""
        attempt = self._attempt
        self._hot.receive(data)
        if attempt is None or self.failed or self.phase is Phase.LEFT:
            return
        try:
            attempt.slice.receive(decode_frame(data), peer)
        except ProtocolViolation as error:
            self._fail(failure(FailureKind.PEER, f"worker {peer} broke the protocol: {error}", peer))
        except TailraceError as error:
            self._fail_by(error)
        self._require(attempt.note_peer(peer))

    def _links_up(self) -> None:
        """Goes on once all links to other workers are up."""
        attempt = self._attempt
        if attempt is None or self.failed or self.phase is not Phase.DEPLOYED:
            return
        self._require(attempt.links_up())

    def _go_on(self, attempt: Attempt) -> list[Action]:
        """Goes on replacing a lost worker: it replays a portion of the history, and runs when all is replayed."""
        actions = attempt.go_on()
        if actions is None:
            return [*attempt.sends(), *attempt.loads()]
        self.phase = Phase.RUNNING
        return actions

    def _peer_lost(self, peer: int, reason: str) -> None:
        """Handles the loss of the link to a peer. After the end of all tasks a loss is expected. Where lost workers are
        replaced, the loss is reported, and the coordinator decides."""
        attempt = self._attempt
        if self.failed or attempt is None:
            return
        if peer >= attempt.slice.plan.slots:
            self._require(attempt.standby_lost(peer, reason))
            return
        runs = self.phase in (Phase.RUNNING, Phase.FINISHED) or attempt.resumed is not None
        if attempt.recorded is not None and runs:
            self._send(Severed(peer, reason, attempt.epoch_of(peer)))
        elif self.phase in (Phase.RUNNING, Phase.DEPLOYED):
            self._fail(failure(FailureKind.PEER, f"lost the connection to worker {peer}: {reason}", peer))

    def _restore(self, event: StatePartRead | StateRead | StateUnreadable) -> None:
        """Handles an answer of the storage to `ReadState`. An answer to an older request is ignored."""
        attempt = self._attempt
        if self._hot.take_answer(event):
            return
        if attempt is None:
            self._guard(lambda: self._standing.read(event))
            return
        if not attempt.awaits_state(event.number):
            self._beside(lambda: self._standing.read(event))
            return
        if self.failed:
            return
        match event:
            case StatePartRead():
                self._guard(lambda: attempt.restore(event.part))
            case StateRead():
                self._guard(attempt.end_restore)
            case StateUnreadable():
                self._unreadable(event)
            case _:
                assert_never(event)

    def _take_placed(self, event: PlacedRead | PlacedUnreadable) -> None:
        """Handles an answer of the storage to `ReadPlaced`. An answer to an older request is ignored."""
        attempt, number = self._attempt, event.number
        if (
            self._hot.take_answer(event)
            or attempt is None
            or self.failed
            or not (attempt.publisher.awaits(number) or attempt.awaits_records(number))
        ):
            return
        if isinstance(event, PlacedUnreadable):
            self._unreadable(event)
            return
        data = event.data
        if attempt.publisher.awaits(number):
            self._guard(lambda: attempt.publisher.read(number, data))
        else:
            self._guard(lambda: attempt.records_read(number, data))

    def _sink_answered(self, event: SinkAnswered) -> None:
        """Handles the end of a call of a sink. One of an earlier attempt is ignored."""
        attempt = self._attempt
        if attempt is not None and not self.failed and self.phase is not Phase.LEFT:
            self._guard(lambda: attempt.publisher.take_answer(event))

    def _unreadable(self, event: StateUnreadable | PlacedUnreadable) -> None:
        self._fail(failure(FailureKind.STATE if event.fatal else FailureKind.STORE, event.reason))

    def _file_answered(self, event: StateWritten | StateNotWritten) -> None:
        """Handles an answer of the storage to `WriteState`."""
        attempt = self._attempt
        if attempt is None:
            return
        if isinstance(event, StateWritten):
            self._require(attempt.file_written(event.checkpoint, event.now))
        else:
            self._require(attempt.not_written(event.checkpoint, event.reason))

    # Steps.

    @property
    def stepping(self) -> bool:
        """True while tasks may be stepped. In a job with checkpoints this includes finished tasks: their state belongs
        into every later checkpoint."""
        attempt = self._attempt
        if self.failed or attempt is None:
            return False
        return self.phase in (Phase.RUNNING, Phase.FINISHED) and not attempt.closed

    @property
    def working(self) -> bool:
        """True while the worker may have something to do without an event from outside: steps, or a replay."""
        if self._hot.followed is not None:
            return True
        return self.stepping or (self._attempt is not None and self._attempt.resumed is not None and not self.failed)

    @property
    def follows(self) -> bool:
        """True while this standby follows the worker of a slice."""
        return self._hot.followed is not None

    @property
    def pace(self) -> int:
        """Microseconds, at least, from one answer of a hot standby to the next."""
        chosen = self._tuning.pace
        return chosen if chosen is not None else 0 if self.spec is None else self.spec.kept.pace

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that runs here; None while none does."""
        return self._attempt

    @property
    def slice(self) -> Slice | None:
        """The tasks of the attempt and their channels; None while there is no attempt."""
        return None if self._attempt is None else self._attempt.slice

    @property
    def incarnation(self) -> int:
        """The incarnation that the worker's tasks run under, 0 while there are none."""
        attempt = self._attempt or self._hot.followed
        return 0 if attempt is None else attempt.slice.incarnation

    @property
    def encoding(self) -> bool:
        """True while a snapshot is to be encoded."""
        return self.stepping and self._attempt is not None and self._attempt.encoding

    @property
    def urgency(self) -> Urgency:
        """The share of a busy worker's time that the next portion of encoding may take."""
        return Urgency.USUAL if self._attempt is None else self._attempt.urgency

    def tasks(self) -> list[Task]:
        """All tasks, the most downstream one first."""
        return [] if self._attempt is None else self._attempt.tasks()

    def awake(self, now: int) -> Iterable[Task]:
        """The tasks to be stepped at time `now` (int64 microseconds), in this order."""
        return () if self._attempt is None else self._attempt.awake(now)

    @property
    def wake_at(self) -> int | None:
        """The earliest time (int64 microseconds) at which the clock alone gives a task work; None if there is none. Valid
        while no task has work."""
        return None if self._attempt is None else self._attempt.wake_at

    def _step(self, event: Step) -> Idle | None:
        """Steps one task; an error of user code becomes `Failed`. The step after the last one of all tasks closes the
        user's functions. What the tasks sent is on its way by then, and the end of the job does not wait for the
        functions, which may take seconds."""
        attempt = self._attempt
        assert attempt is not None
        if self.phase is Phase.RUNNING and attempt.slice.finished:
            self._finish(attempt)
            return None
        task = attempt.slice.by_vertex[event.vertex]
        try:
            idle = attempt.step(task, event.now, event.budget)
            if idle is None or attempt.slice.actions or task.chain.requires_actions:
                self._require(attempt.required_actions(event.now))
        except BaseException as error:
            self._fail_by(error, task.vertex.name)
            return Idle(Reason.FINISHED)
        return idle

    def _encode(self, now: int, limit: int) -> None:
        """Encodes about `limit` more entries of a snapshot, or of a log."""
        attempt = self._attempt
        if attempt is None:
            return
        task = attempt.to_encode()
        try:
            self._require(attempt.encode(task, now, limit))
        except BaseException as error:
            self._fail_by(error, None if task is None else task.vertex.name)

    def _flush(self, answers: bool) -> bool:
        """Sends gathered frames, or goes on with a replay, when nothing else is to be done. Returns whether something was
        sent or replayed."""
        attempt = self._attempt
        if self._hot.followed is not None:
            return self._hot.follow_on(answers)
        if attempt is None or not self.working:
            return False
        if attempt.resumed is not None:
            self._guard(lambda: self._go_on(attempt))
            return attempt.moved
        try:
            flushed = attempt.slice.flush()
        except BaseException as error:
            self._fail_by(error)
            return False
        self._require(attempt.sends())
        if not flushed:
            self._require(attempt.at_rest())
        return flushed

    def _report(self, due: ReportDue) -> None:
        if self._attempt is not None and self.phase in (Phase.RUNNING, Phase.FINISHED) and not self.failed:
            self._attempt.look_at_lags(due.now)
            self._require(self._attempt.report(due.busy, due.elapsed, due.refused))

    # From one attempt to the next.

    def _deploy(self, message: Deploy, resume: Resume | None = None) -> list[Action]:
        self._hot.end()
        deployed = self._standing.deploy(message, self.slot)
        spec, mirror = deployed.noting(message.noted), self._standing.mirror_for(message)
        self.spec = spec
        services = self.services_of(spec, message, mirror)
        self._standing.prepare(spec, self.slot)
        self._attempt = Attempt(spec, self.slot, self.epoch, message, services, self._numbers, resume, mirror)
        return self._attempt.begin(message)

    def _resume(self, message: Resume) -> list[Action]:
        """Takes the place of a lost worker: from where it is, if this standby has followed it."""
        successor = self._hot.successor(message)
        if successor is None:
            return self._deploy(message.deploy, message)
        self._attempt, self.spec = successor, successor.spec
        return successor.take_place(message, self.epoch)

    def _of_a_standby(self, message: StandbyCommand) -> None:
        of_any = self._hot.take(message, self.epoch)
        if of_any is None:
            return
        if self._attempt is not None and not isinstance(of_any, TakeSlot):
            self._beside(lambda: self._standing.receive(of_any, runs=True))
            return
        if isinstance(of_any, TakeSlot):
            self.slot, self.phase = of_any.slot, Phase.JOINING
        self._guard(lambda: self._standing.receive(of_any))
        self.spec = self._standing.spec

    def services_of(self, spec: JobSpec, deploy: Deploy | None, mirror: Mirror | None = None) -> Services:
        """The services of this worker for the tasks of a deployment; `mirror` has backends for some of them."""
        make, spill, tuning = self._backend_factory, self._make_spill, self._tuning
        backend = None if make is None else backends(spec, make, mirror)
        return services_of(spec, deploy, self._random_factory, backend, spill, self._outside, tuning, self._shared)

    def _reset(self, number: int) -> None:
        """Prepares for a new start of the job in this process: nothing of the attempt stays."""
        self._close()
        self.actions.append(ClosePeers())
        self._attempt, self.spec = None, self._standing.spec
        self.failed = False
        self.phase = Phase.JOINED
        self._send(WasReset(number))

    def _finish(self, attempt: Attempt) -> None:
        """Ends the attempt's work, once every task has ended."""
        self.phase = Phase.FINISHED
        if attempt.takes_checkpoints:  # functions stay open for the last checkpoint; sinks prepare at its cut
            self._send(SubtasksFinished([]))
            return
        self._close()
        self._require(attempt.finish())

    def _leave(self, reason: str) -> None:
        self.phase = Phase.LEFT
        self._close()
        self.close_errors += [*self._hot.close_errors, *self._standing.close()]
        self.actions.append(Exit(reason))

    def _close(self) -> None:
        """Closes the user's functions once, and gives up files in progress. The attempt does nothing after that."""
        self._hot.end()
        attempt = self._attempt
        if attempt is None:
            return
        if not attempt.closed:
            self.close_errors = attempt.close()
        self._require(attempt.drop())

    # Failures.

    def _guard(self, act: Callable[[], list[Action] | None]) -> None:
        """Calls the attempt while no task runs; an error becomes `Failed`."""
        try:
            self._require(act() or ())
        except BaseException as error:
            self._fail(self._keep_call(fault_outside_tasks(error, self.slot, self._place_of), error))

    def _beside(self, act: Callable[[], list[Action]]) -> None:
        """Gets ready for another size beside tasks that run. An error in it is no failure of theirs: the deployment, which
        reads all anew, meets it again and reports it."""
        try:
            self._require(act())
        except Exception:
            self._require(self._standing.give_up())

    def _fail_by(self, error: BaseException, operator: str | None = None) -> None:
        self._fail(self._keep_call(fault_of(error, self.slot, operator, self._place_of), error))

    def _keep_call(self, fault: Failed, error: BaseException) -> Failed:
        """The failure with a capsule of the call that failed, if the job keeps capsules."""
        return with_call(fault, error, self.spec, self.tasks(), (self.incarnation, self.slot, self.epoch))

    def _place_of(self, operator: str) -> str:
        return "" if self.spec is None else self.spec.place_of(operator)

    def _fail(self, fault: Failed) -> None:
        """Reports a failure to the coordinator, but only the first one of an attempt."""
        if not self.failed and self.phase is not Phase.LEFT:
            self.failed = True
            self._send(with_policy(fault, self.spec))

    # Actions.

    def _send(self, message: FromWorker) -> None:
        self._require([ToCoordinator(message)])

    def _require(self, actions: Iterable[Action]) -> None:
        recorded = None if self._attempt is None else self._attempt.recorded
        self.actions.extend(self._conversation.behind_history(recorded, actions))
