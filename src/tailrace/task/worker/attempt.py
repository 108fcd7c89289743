"""One attempt of a job in one worker: the worker's slice, and its part in restoring, in checkpoints and in publishing."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import assert_never

from tailrace.errors import InternalError
from tailrace.protocol.deployment import (
    Deploy,
    Deployed,
    EndSources,
    OperatorEvent,
    Peer,
    Publish,
    Settled,
    SubtasksFinished,
)
from tailrace.protocol.hot_standby import Feed, Feeds
from tailrace.protocol.message_codec import NestCommand
from tailrace.protocol.replay import Replaced, Restored, Resume, WorkerLost
from tailrace.protocol.snapshot import Abort, Complete, Declined, Trigger
from tailrace.state.manifest import decode_manifest
from tailrace.state.parts import Part
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.channels.lazy_records import Parked
from tailrace.task.channels.services import Services
from tailrace.task.contract.actions import Action, AwaitPeer, ConnectPeers, ReadPlaced, ReadState, ToCoordinator
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.failover.replacement import Resumed, sweep
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.failover.slice_choice import slice_of
from tailrace.task.failover.standby_mirrors import Mirror
from tailrace.task.failover.survivor import known_history, peer_replaced
from tailrace.task.slice.turns import Turns
from tailrace.task.subtask.idleness import Idle
from tailrace.task.subtask.machine import Task
from tailrace.task.worker.checkpoints import WorkerCheckpoints
from tailrace.task.worker.publishing import Publisher, in_parts, with_one_publisher
from tailrace.task.worker.replacement_restore import ReplacementRestorer
from tailrace.task.worker.restore import Restorer

RETURNED = "records in flight at the restored checkpoint"
AttemptMessage = (
    Trigger | Abort | Complete | WorkerLost | Replaced | Feed | Publish | Settled | OperatorEvent | EndSources
)


class Urgency(Enum):
    """The share of a busy worker's time that encoding may take."""

    USUAL = "usual"
    """Records come first."""
    IN_FLIGHT = "in flight"
    """Records that barriers have overtaken are encoded: these records wait anyway, and the checkpoint waits for them. Or a
    user waits for a savepoint whose barriers overtake them."""
    LAST = "last"
    """The job ends behind the checkpoint: nothing else is left to do."""


class Attempt:
    """One attempt of a job in one worker, from a `Deploy` to the next `Reset` or to the end of the worker. Its methods
    return the actions it requires. It does not know the worker's phases and catches nothing: the worker reports what it
    raises."""

    in_order = False
    """True if a loop is replayed in one order, whatever comes of its history."""
    follows = False
    """True if it is the attempt of a hot standby, and has no effect."""

    def __init__(
        self,
        spec: JobSpec,
        slot: int,
        epoch: int,
        deploy: Deploy,
        services: Services,
        numbers: Iterator[int],
        resume: Resume | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        """`spec`: each operator has a function object to itself, which is prepared. `resume`: given if it takes the place
        of a lost worker. `mirror`: the state that the worker held as a standby, whose backends the services give away."""
        if resume is not None:
            services.inputs_closed, services.in_flight = False, frozenset(resume.in_flight)
        self.slice = slice_of(spec, slot, deploy.attempt, services, self.follows)
        self._one_publisher = with_one_publisher(spec.plan)
        self.checkpoints = WorkerCheckpoints(slot, epoch, services, self.slice.tasks, self._one_publisher)
        """The checkpoints under way; none in a job that takes none."""
        self.closed = False
        """True once the user's functions were closed."""
        self.origin = deploy.manifest, deploy.folder
        """The restored manifest, if there is one, and the folder in which the files are."""
        self._slot = slot
        self._peers: dict[int, Peer] = {peer.slot: peer for peer in deploy.peers}
        if isinstance(self.slice, ReplayableSlice):
            self.slice.place({peer.slot: peer.home for peer in deploy.peers})
        self.publisher = Publisher(slot, spec.plan, services, numbers)
        """The part of this worker in publishing."""
        self._resume = resume
        self._succeeds = None if resume is None else resume.checkpoint
        """If it takes the place of a lost worker: the newest checkpoint with output of that worker's sinks, until all of
        this output is published."""
        self.mirror = mirror
        """The state that was held before the storage was requested to read any."""
        self.resumed: Resumed | None = None
        """The replay of a lost worker's history, while it goes on."""
        self._restorer: Restorer | None = None
        """The restorer, while the storage reads what is to be restored."""
        self._restored: ReplacementRestorer | None = None
        """The restorer of a lost worker's slice, which has the contents of its channels, until the replay begins."""
        self._numbers = numbers
        """Numbers of requests to the storage, through all attempts of a worker. The number of an answer to an earlier
        attempt is never the number of a request of this one."""
        self.state_requested = 0
        """The number of the `ReadState` request."""
        self._loads: dict[int, tuple[Task, InputChannel, list[Parked]]] = {}
        """`ReadPlaced` requests for records in flight at the restored cut, by number: the task, the channel and the
        records that each loads."""
        self.moved = False
        """True if the last `go_on` has replayed anything."""
        self._turns = Turns(self.slice.tasks)
        self._to_cut: dict[int, Trigger] = {}
        """Triggers of checkpoints, by number, while this worker's file is not durable and the coordinator has neither
        completed nor aborted them."""

    @property
    def recorded(self) -> ReplayableSlice | None:
        """The slice, in a job whose workers are replaced alone; else None."""
        return self.slice if isinstance(self.slice, ReplayableSlice) else None

    @property
    def opened(self) -> bool:
        """True once the state is restored, and the user's functions are open."""
        return self._restorer is None

    # The beginning.

    def begin(self, deploy: Deploy) -> list[Action]:
        """Requests this worker's part of the checkpoint to be read; without a checkpoint, opens the functions at once."""
        if not deploy.manifest:
            return self._open()
        manifest = decode_manifest(deploy.manifest, "the manifest to restore")
        # If the lost worker was restored like the others, and has made no cut since, all is restored as for any worker.
        as_it_was = self._resume is not None and self._resume.checkpoint > 0
        make = ReplacementRestorer if as_it_was else Restorer
        restorer = self._restorer = make(self.slice.plan, self.slice.tasks, manifest, deploy.own)
        if deploy.own:
            self.checkpoints.note_restore(manifest.channels)
        self._restored = restorer if isinstance(restorer, ReplacementRestorer) else None
        mirror = self.mirror
        held = mirror.everything_of(manifest) if mirror is not None and as_it_was else None
        if held is not None:
            for part in held:
                restorer.part(part)
            return self.end_restore()
        self.state_requested = number = next(self._numbers)
        required, chains = restorer.required_groups(), {} if mirror is None else mirror.chains
        worker = self._slot if as_it_was else None
        return [ReadState(number, deploy.manifest, deploy.folder, required, chains, worker)]

    def awaits_state(self, number: int) -> bool:
        """True if an answer with this number is for the `ReadState` request of this attempt, and the end of the answer
        has not come."""
        return self._restorer is not None and number == self.state_requested

    def restore(self, part: Part) -> None:
        """Takes a part of what is to be restored."""
        assert self._restorer is not None
        self._restorer.part(part)

    def end_restore(self) -> list[Action]:
        """Ends restoring, once all was read, and opens the functions."""
        assert self._restorer is not None
        restorer, self._restorer = self._restorer, None
        restorer.finish()
        return self._open()

    def _open(self) -> list[Action]:
        if self.recorded is None or self._resume is None:
            self.slice.open()
        else:
            self.recorded.open(self._resume.history.opened)
        if self._resume is not None and self.recorded is not None:
            channels = None if self._restored is None else self._restored.channels
            follows, in_order = self.follows, self.in_order
            self.resumed, self._restored = Resumed(self.recorded, self._resume, channels, follows, in_order), None
            return self._replay()
        return [self._connect(), *self.required_actions()]

    def _replay(self) -> list[Action]:
        """The actions at the beginning of a replay."""
        return [ToCoordinator(Restored()), self._connect()]

    def _connect(self) -> ConnectPeers:
        needed = self.slice.peers()
        late = self._resume is not None
        changing = self.recorded is not None
        together = frozenset(self._resume.together if self._resume is not None else ())
        peers = tuple(peer for slot, peer in self._peers.items() if slot in needed)
        return ConnectPeers(peers, late, changing, together)

    def links_up(self) -> list[Action]:
        """Reports that all links to other workers are up; a replacement goes on with its replay."""
        return [ToCoordinator(Deployed())] if self.resumed is None else self.resumed.links_up()

    def handle(self, message: AttemptMessage) -> list[Action]:
        """Handles a message of the coordinator."""
        match message:
            case Trigger() | Abort() | Complete():
                return self.checkpoint(message)
            case WorkerLost():
                assert self.recorded is not None
                return [ToCoordinator(known_history(self.recorded, message))]
            case Replaced():  # the replacement will call
                peer = message.peer
                self._peers[peer.slot] = peer
                assert self.recorded is not None
                self.recorded.place({peer.slot: peer.home})
                self.recorded.settle(peer.slot, message.known)
                (self.recorded.awaiting.add if message.hot else self.recorded.awaiting.discard)(peer.slot)
                replaces = [AwaitPeer(peer)] if peer.slot in self.slice.peers() else []
                return [*replaces, *(self.required_actions() if self.resumed is None else [])]
            case Feed():
                return self._feed(message)
            case Publish():
                return self.publisher.publish(message)
            case Settled():
                return self.publisher.settle(message)
            case OperatorEvent():
                self.slice.note(message)
                self.slice.operator_event(message.vertex, message.source, message.payload)
                return self.required_actions()
            case EndSources():
                self.slice.note(message)
                for task in self.slice.tasks:
                    task.end_source()
                return []
            case _:
                assert_never(message)

    # Workers that are replaced.

    def go_on(self) -> list[Action] | None:
        """Replays a portion of a lost worker's history. Returns the actions that follow when the replay has reached the
        end of the history; None before that."""
        assert self.resumed is not None
        self.moved = False
        actions = self.resumed.go_on()
        self.moved = self.resumed.again.moved or actions is not None
        if actions is not None:
            self.resumed = None
            self.slice.actions.clear()
        return actions

    def note_peer(self, peer: int) -> list[Action]:
        """Notes that a peer has sent something. Returns the actions that follow at once."""
        if self.resumed is None:
            return self.sends()
        return self.resumed.note_peer(peer)

    def loads(self) -> list[Action]:
        """The reads of records in flight that the replay requires next."""
        assert self.resumed is not None
        actions = [actions for task in self.slice.tasks if task.gate.front for actions in self._to_load(task)]
        for task, channel in self.resumed.again.lacks:
            parked = channel.next_to_load()
            actions += [self._load(task, channel, parked)] if parked else []
        return actions

    def epoch_of(self, slot: int) -> int:
        """The epoch of the worker in another slot, as far as this worker knows."""
        return self._peers[slot].epoch

    def peer_replaced(self, slot: int) -> list[Action]:
        """Goes on with the replacement of a lost peer, which can be reached now."""
        assert self.recorded is not None
        if slot < self.slice.plan.slots:
            return [*peer_replaced(self.recorded, slot), *self.required_actions()]
        feed = self.recorded.feed
        if feed is not None:
            feed.begin(slot)
            feed.urgent = True
        return self.sends()

    def _feed(self, message: Feed) -> list[Action]:
        """Lets a standby call, if all is kept that it needs."""
        recorded, place = self.recorded, message.peer.slot
        feed = None if recorded is None else recorded.feed
        if recorded is None or feed is None or self.resumed or not feed.expect(place, message.checkpoint):
            return [ToCoordinator(Feeds(place, message.checkpoint, possible=False))]
        recorded.history.forget(place)
        return [AwaitPeer(message.peer), ToCoordinator(Feeds(place, message.checkpoint))]

    def standby_lost(self, place: int, reason: str) -> list[Action]:
        """Goes on without the hot standby in this place."""
        feed = None if self.recorded is None else self.recorded.feed
        if feed is not None and feed.party == place:
            feed.end(f"it has lost the connection to its worker: {reason}")
        return self.sends()

    # Steps.

    def tasks(self) -> list[Task]:
        """All tasks, the most downstream one first."""
        return self.slice.tasks

    def awake(self, now: int) -> Iterator[Task]:
        """The tasks to be stepped at time `now`, in this order: first those that are to make a cut, then by turns all
        that do not sleep. None during a replay."""
        if self.resumed is not None:
            return
        if self._to_cut:
            yield from self._turns.to_cut()
        for task in self._turns.order():
            if not task.asleep(now):
                yield task
            elif self.slice.services.debug:
                task.check_asleep(now)

    @property
    def wake_at(self) -> int | None:
        """The earliest time at which the clock alone gives a task work; None if there is none. Valid while no task has
        work."""
        return min((t.idle.wake_at for t in self.slice.tasks if t.idle and t.idle.wake_at is not None), default=None)

    def step(self, task: Task, now: int, budget: int) -> Idle | None:
        """Steps one task. `required_actions` returns the actions that follow."""
        idle = self.slice.step(task, now, budget)
        if idle is None:
            self._turns.note_step(task)
        return idle

    def sends(self) -> list[Action]:
        """The frames that the tasks have sent to other workers, as actions."""
        sends: list[Action] = [*self.slice.actions]
        self.slice.actions.clear()
        return sends

    def required_actions(self, now: int = 0) -> list[Action]:
        """The actions that the tasks require."""
        actions = self.sends()
        if self.slice.nests:
            actions += map(ToCoordinator, self.slice.nests.end_reports())
        for task in self._stirred_tasks():
            source = task.chain.source
            if source is not None and source.events:
                for target, payload in source.events:
                    actions.append(ToCoordinator(OperatorEvent(task.vertex.id, self._slot, target, payload)))
                source.events.clear()
            if task.chain.calling is not None and self.resumed is None:
                begun = task.chain.calling.begin_calls()
                actions += [] if begun is None else [begun]
            if task.gate.front:
                actions += self._to_load(task)
            if task.cuts.declined:
                for checkpoint in task.cuts.declined:
                    actions.append(ToCoordinator(Declined(checkpoint, f"{task.id}: a later checkpoint overtook it")))
                task.cuts.declined.clear()
            if task.checkpoints.snapshot is not None:
                actions += self.checkpoints.collect(task, now)
        return actions

    def _to_load(self, task: Task) -> list[Action]:
        """The reads of records in flight at the restored cut that a task requires now."""
        return [self._load(task, channel, parked) for channel, parked in task.gate.to_load()]

    def _load(self, task: Task, channel: InputChannel, parked: list[Parked]) -> Action:
        number = next(self._numbers)
        self._loads[number] = task, channel, parked
        return ReadPlaced(number, RETURNED, "", tuple(one.place for one in parked))

    def awaits_records(self, number: int) -> bool:
        """True if an answer with this number is for a `ReadPlaced` request for records in flight."""
        return number in self._loads

    def records_read(self, number: int, data: list[bytes]) -> list[Action]:
        """Loads records in flight that were read."""
        task, channel, parked = self._loads.pop(number)
        for one, frame in zip(parked, data, strict=True):
            one.load(frame)
        task.note_loaded(channel)
        return self.required_actions() if self.resumed is None else []

    def calls_answered(self, uid: str, count: int) -> None:
        """Notes that calls of an operator were answered, which a step of its task takes."""
        for task in self.slice.tasks:
            if task.chain.calling is not None and task.chain.calling.ctx.uid == uid:
                task.calls_answered(count)

    def reader_woken(self, uid: str) -> None:
        """Notes that the reader of a source may have records."""
        for task in self.slice.tasks:
            if task.chain.source is not None and task.chain.source.ctx.uid == uid:
                task.reader_woken()

    def _stirred_tasks(self) -> list[Task]:
        """The tasks with an event since the last call, and those with a snapshot. No other task can require an action,
        and there may be hundreds of tasks."""
        services = self.slice.services
        stirred = services.stirred
        tasks = [self.slice.by_vertex[vertex] for vertex in stirred]
        if services.debug:
            self._check_stirred()
        stirred.clear()
        for task in tasks:
            if task.checkpoints.snapshot is not None:
                stirred[task.id.vertex] = None
        return tasks

    def _check_stirred(self) -> None:
        for task in self.slice.tasks:
            source = task.chain.source
            if (task.checkpoints.snapshot or task.cuts.declined or (source and source.events)) and (
                task.id.vertex not in self.slice.services.stirred
            ):
                raise InternalError(f"K5: {task.id} requires an action, and no event has stirred it", ())

    def at_rest(self) -> list[Action]:
        """Reports which loop nests have come to rest, when the tasks have nothing else to do."""
        return [ToCoordinator(report) for report in self.slice.nests.idle()]

    def look_at_lags(self, now: int) -> None:
        """Takes the lags of the readers of sources into their metrics."""
        for task in self.slice.tasks:
            if task.chain.source is not None and not self.closed:
                task.chain.source.look_at_lag(now)

    def report(self, busy: dict[int, int], elapsed: int, refused: dict[str, int]) -> list[Action]:
        """The progress report of the worker."""
        progress = self.slice.progress(busy, elapsed, refused, self._phases())
        return [ToCoordinator(progress), *map(ToCoordinator, self.slice.nests.times())]

    def _phases(self) -> dict[int, str]:
        """The phase of each checkpoint that is not durable yet."""
        return {one: self.checkpoints.phase_of(one) for one in sorted(self._to_cut)}

    def command(self, message: NestCommand) -> list[Action]:
        """Handles a command of the coordinator to a loop nest."""
        self.slice.note(message)
        self.slice.nests.command(message)
        return self.required_actions()

    # Checkpoints.

    @property
    def takes_checkpoints(self) -> bool:
        """True if the job takes checkpoints."""
        return self.slice.services.checkpointing

    def checkpoint(self, message: Trigger | Abort | Complete) -> list[Action]:
        """Handles the begin, the end or the abort of a checkpoint."""
        if not self.takes_checkpoints:
            return []
        self.slice.note(message)
        if isinstance(message, Trigger):
            self._to_cut[message.cut.number] = message
            self.slice.trigger(message.cut)
            return []
        self._to_cut.pop(message.checkpoint, None)
        if isinstance(message, Complete):
            self.slice.confirm(message.checkpoint)
            self.checkpoints.complete(message.checkpoint)
            if self._succeeds is not None and message.visible >= self._succeeds:
                self._succeeds = None
                sweep(self.slice)
            return []
        self.slice.abort(message.checkpoint)
        return [*self.checkpoints.abort(message.checkpoint), *self.between_cuts()]

    def between_cuts(self) -> list[Action]:
        """Reports loops at rest when a checkpoint is over. If checkpoints come so fast that the worker never rests, this
        is the only such report, since cuts are no work: a loop must come to its end even if no checkpoint succeeds."""
        return [] if self.resumed is not None else self.at_rest()

    @property
    def encoding(self) -> bool:
        """True while a snapshot or a log is to be encoded."""
        checkpoints = self.checkpoints
        logs = not checkpoints.idle and (checkpoints.logs_to_encode or checkpoints.ahead_to_encode)
        return logs or self.to_encode() is not None

    @property
    def urgency(self) -> Urgency:
        """The share of a busy worker's time that the next portion of encoding may take."""
        task = self.to_encode()
        snapshot = None if task is None else task.checkpoints.snapshot
        if snapshot is not None and snapshot.ends_job:
            return Urgency.LAST
        if any(one.cut.urgent for one in self._to_cut.values()):  # this is of the urgent cut, or in its way
            return Urgency.IN_FLIGHT
        overtaken = snapshot is None and self.checkpoints.in_flight_to_encode
        return Urgency.IN_FLIGHT if overtaken else Urgency.USUAL

    def to_encode(self) -> Task | None:
        """The task whose snapshot is encoded next."""
        for vertex in self.slice.services.stirred:
            task = self.slice.by_vertex[vertex]
            if task.checkpoints.snapshot is not None and not task.checkpoints.snapshot.done:
                return task
        return None

    def encode(self, task: Task | None, now: int, limit: int) -> list[Action]:
        """Encodes about `limit` more entries of the snapshot of a task, or, where none has one, of a log."""
        if task is not None:
            task.checkpoints.encode(now, limit)
            return self.required_actions(now)
        if self.checkpoints.logs_to_encode:
            return [*self.checkpoints.encode_logs(limit, now)]
        return [*self.checkpoints.encode_ahead(limit, now)] if self.checkpoints.ahead_to_encode else []

    def froze(self, vertex: int, micros: int) -> None:
        """Notes how long the last cut of a vertex's task took, in microseconds."""
        self.checkpoints.froze(self.slice.by_vertex[vertex], micros)

    def file_written(self, checkpoint: int, now: int) -> list[Action]:
        """Reports that the file of a checkpoint is durable."""
        ack = self.checkpoints.file_written(checkpoint, now)
        self._to_cut.pop(checkpoint, None)
        return [] if ack is None else [ToCoordinator(ack), *self.between_cuts()]

    def not_written(self, checkpoint: int, reason: str) -> list[Action]:
        """Reports that the file of a checkpoint cannot be written."""
        if not self.checkpoints.knows(checkpoint):
            return []
        if self.checkpoints.is_ahead(checkpoint):  # written ahead: the coordinator does not wait for it
            return [*self.checkpoints.drop_ahead()]
        return [ToCoordinator(Declined(checkpoint, reason, out_of_reach=True))]

    # The end.

    def finish(self) -> list[Action]:
        """Reports the end of all tasks, in a job without checkpoints, with the output that sinks have prepared, in parts."""
        *parts, last = in_parts([one for task in self.slice.tasks for one in task.prepared_output()])
        alone = sorted(self._one_publisher)
        messages = [SubtasksFinished(part, True, alone) for part in parts]
        return [*self.at_rest(), *map(ToCoordinator, messages), ToCoordinator(SubtasksFinished(last, False, alone))]

    def close(self) -> list[BaseException]:
        """Closes the user's functions; returns the errors that they raised."""
        self.closed = True
        return self.slice.close()

    def drop(self) -> list[Action]:
        """Gives up the checkpoints that are being written."""
        return [*self.checkpoints.drop_all()]
