"""The workers of a simulated cluster, and their actions: the counterpart of `runtime.worker.main_loop`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, assert_never

from tailrace.protocol import message_codec
from tailrace.protocol.deployment import Hello, PeerHello, SubtaskReport, Welcome
from tailrace.protocol.replay import Resume
from tailrace.protocol.succession import Rejoin
from tailrace.task.contract.actions import (
    Action,
    AwaitPeer,
    BeginCalls,
    CallSink,
    ClosePeers,
    ConnectPeers,
    DropState,
    Exit,
    HoldSlot,
    ReadPlaced,
    ReadState,
    ToCoordinator,
    ToPeer,
    WriteState,
)
from tailrace.task.contract.events import (
    CallsAnswered,
    CoordinatorSaid,
    Encode,
    Flush,
    FrameArrived,
    PeerBack,
    PeersConnected,
    PeersUnreachable,
    ReportDue,
    Step,
)
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.contract.outside import Outside
from tailrace.task.worker.followed_attempt import FollowingAttempt
from tailrace.task.worker.rendezvous import Acceptance, Meeting
from tailrace.testing.background import SimulatedBeside
from tailrace.testing.calls import SimulatedCalls
from tailrace.testing.cluster import Cluster
from tailrace.testing.publishing import Publishing
from tailrace.testing.recording import Recordings
from tailrace.testing.setting import Setting
from tailrace.testing.storing import Storage
from tailrace.testing.world import Driver, Event, FrameItem, SimulatedProcess, StoreWork


class Workers:
    """Starts workers, steps them, and carries out their actions."""

    def __init__(
        self,
        cluster: Cluster,
        storage: Storage | None,
        name: str,
        load: Callable[[], JobSpec],
        setting: Setting,
        recordings: Recordings | None,
    ) -> None:
        self._cluster = cluster
        self._storage = storage
        """None where the job takes no checkpoints."""
        self._name = name
        self._load = load
        self._setting = setting
        self._recordings = recordings
        """Recordings of the events and actions of the workers; None: nothing is recorded."""
        self._publishing = Publishing(cluster, self.act)
        self._answered: dict[int, int] = {}
        """The time at which each hot standby has answered its worker last, by party."""
        self._busy: dict[int, dict[int, int]] = {}
        """Microseconds of work of each worker that reports, by party and vertex."""
        self._reported: dict[int, int] = {}
        """The time at which each of them has reported last."""
        self.reports: list[SubtaskReport] = []
        """The last figures of every subtask, taken when its worker left."""

    def launch(self, driver: Driver, slot: int, launch: int) -> None:
        """Starts a worker's process when there is a task slot for it."""
        self._cluster.give((driver, slot, launch), lambda: self.spawn(driver, slot, launch))

    def spawn(self, driver: Driver, slot: int, launch: int) -> None:
        """Starts a worker's process, which will send its `Hello`."""
        cluster, load, recording = self._cluster, self._load, None
        party, checkpointing = cluster.party(), self._storage is not None
        if self._recordings is not None:
            recording = self._recordings.begin(load, self._setting, checkpointing, slot, driver.run_id)
        outside = Outside() if recording is None else recording.outside
        outside.beside = SimulatedBeside(cluster, party, self.act)
        make = lambda: replace(load(), run_id=driver.run_id)  # noqa: E731 - what a real one unpickles
        machine = self._setting.worker(slot, make, checkpointing, cluster.covered, outside)
        meeting, clocks = Meeting(slot, self._name), cluster.clocks(slot)
        process = SimulatedProcess(
            party, driver, slot, launch, machine, meeting, cluster.observers, clocks, recording=recording
        )
        process.executor = cluster.executor()
        cluster.processes[party] = process
        hello = Hello(
            slot,
            "simulated",
            party,
            party,
            self._name,
            driver.coordinator.incarnation,
            launch,
            executor=process.executor,
        )
        cluster.send(party, driver.party, hello, cluster.chance.randint(*cluster.conditions.startup))

    def _hold(self, process: SimulatedProcess, slot: int) -> None:
        """Lets a standby hold a slot from now on."""
        cluster, party = self._cluster, process.party
        cluster.count("a standby takes a slot")
        process.meeting = Meeting(slot, self._name)
        incarnation = process.driver.coordinator.incarnation
        start = process.launch, process.place, process.executor
        hello = Hello(slot, "simulated", party, party, self._name, incarnation, *start)
        cluster.send(party, process.driver.party, hello)

    def deliver(self, process: SimulatedProcess, item: Any) -> None:
        """Delivers an item to a worker."""
        process.asleep_until = 0
        if isinstance(item, FrameItem):
            if (
                process.peers.get(item.slot) == item.party and item.party not in process.cut
            ):  # else their link is closed
                process.handle(FrameArrived(item.data, item.slot))
        elif isinstance(item, Event | StoreWork):
            item.act()
        else:
            message = message_codec.decode_to_worker(message_codec.encode(item))
            if isinstance(message, Welcome) and message.clock:
                # As if the message had taken no time: the golden programs compare moments that differ by less than a delay.
                process.clocks.job.follow(process.driver.clocks.job.now())
            process.handle(CoordinatorSaid(message))
            if isinstance(message, Resume) and message.hot:
                went_on = isinstance(process.machine.attempt, FollowingAttempt)
                self._cluster.count("a hot standby went on" if went_on else "a hot standby began anew")
        self.act(process)

    def step(self, process: SimulatedProcess) -> None:
        """Lets a worker take a step of its own accord."""
        machine, chance, conditions = process.machine, self._cluster.chance, self._cluster.conditions
        vertex: int | None = None
        if machine.encoding and chance.random() < 0.4:
            limit = chance.randint(*conditions.encode_limit)
            process.handle(Encode(process.clocks.job.now(), limit))
            self._cluster.note(f"{self._cluster.who(process.party)} encoded {limit}")
        else:
            vertex = self._work(process)
        took = chance.randint(*conditions.step_cost)
        self._cluster.now += took
        if self._setting.reports_each and not machine.follows:
            self._report(process, vertex, took)
        self.act(process)

    def _report(self, process: SimulatedProcess, vertex: int | None, took: int) -> None:
        """Notes a step of a worker, and lets it report if that is due."""
        busy, party = self._busy.setdefault(process.party, {}), process.party
        if vertex is not None:
            busy[vertex] = busy.get(vertex, 0) + took
        elapsed = self._cluster.now - self._reported.get(party, 0)
        if elapsed >= self._setting.reports_each:
            self._reported[party] = self._cluster.now
            process.handle(ReportDue(dict(busy), elapsed, now=process.clocks.job.now()))

    def _follow(self, process: SimulatedProcess) -> None:
        """Goes on with a hot standby, which answers its worker at its pace."""
        cluster, due = self._cluster, self._answered.get(process.party, 0) + process.machine.pace
        answers = cluster.now >= due
        if process.handle(Flush(answers)):
            cluster.note(f"{cluster.who(process.party)} followed")
            return
        if answers:
            self._answered[process.party] = cluster.now
        process.asleep_until = None if answers else due

    def _work(self, process: SimulatedProcess) -> int | None:
        """Lets a worker work. Returns the vertex whose task has done something."""
        machine, clock = process.machine, process.clocks.job
        if machine.follows:
            self._follow(process)
            return None
        for task in machine.awake(clock.now()):
            budget = self._cluster.chance.randint(*self._cluster.conditions.budget)
            idle = process.handle(Step(task.id.vertex, clock.now(), budget))
            if idle is None:
                self._cluster.note(f"{self._cluster.who(process.party)} {task.id} read {task.work.last_count}")
                return task.id.vertex
            if not machine.stepping:
                return None
        if process.handle(Flush()):
            self._cluster.note(f"{self._cluster.who(process.party)} flushed")
        elif not machine.encoding:
            wake_at = machine.wake_at
            process.asleep_until = None if wake_at is None else wake_at - process.clocks.ahead
            self._cluster.note(f"{self._cluster.who(process.party)} idle until {process.asleep_until}")
        return None

    def act(self, process: SimulatedProcess) -> None:
        """Carries out the actions of a worker."""
        machine = process.machine
        while machine.actions:
            actions, machine.actions = machine.actions, []
            for action in actions:
                self._carry_out_one(process, action)
                if process.party not in self._cluster.processes:
                    return

    def _carry_out_one(self, process: SimulatedProcess, action: Action) -> None:
        match action:
            case ToPeer():
                peer = process.peers.get(action.slot)
                if peer is not None:
                    self._cluster.send(process.party, peer, FrameItem(process.slot, action.data, process.party))
            case ToCoordinator() if isinstance(action.message, Rejoin):
                assert process.called is not None
                self._cluster.send(process.party, process.called.party, action.message)
            case ToCoordinator():
                self._cluster.send(process.party, process.driver.party, (process.slot, process.epoch, action.message))
            case ConnectPeers():
                self._connect(process, action)
            case AwaitPeer():
                self._await_call(process, action)
            case ClosePeers():
                self._close_peers(process)
            case HoldSlot():
                self._hold(process, action.slot)
            case WriteState():
                self._require_storage().write(process, action)
            case DropState():
                self._require_storage().drop(process, action)
            case ReadState():
                self._require_storage().read(process, action)
            case ReadPlaced():
                self._require_storage().read_placed_parts(process, action)
            case BeginCalls():
                self._begin_calls(process, action)
            case CallSink():
                self._publishing.call(process, action)
            case Exit():
                self._publishing.end(process)
                machine = process.machine
                if machine.slice is not None and process.driver is self._cluster.driver:
                    self.reports.extend(machine.slice.reports({}))
                self._cluster.kill(process, f"left: {action.reason}", None, cut=False, announced=True)
            case _:
                assert_never(action)

    def _begin_calls(self, process: SimulatedProcess, action: BeginCalls) -> None:
        """Makes asynchronous calls. Each answer comes when its time has passed, and a delay of chance."""
        cluster = self._cluster

        def answer_later(seconds: float, deliver: Callable[[], bool]) -> None:
            def act() -> None:
                if cluster.processes.get(process.party) is not process:
                    return
                if process.frozen_until > cluster.now:
                    cluster.later(process.frozen_until, "a call is answered", act)
                elif deliver():
                    process.asleep_until = 0
                    process.handle(CallsAnswered(action.uid, 1))
                    self.act(process)

            delay = cluster.chance.randint(*cluster.conditions.delay)
            cluster.later(cluster.now + delay + round(seconds * 1_000_000), "a call is answered", act)

        cluster.count("asynchronous calls")
        slice = process.machine.slice
        calls = None if slice is None else slice.services.outside.calls
        if isinstance(calls, SimulatedCalls):  # else the attempt is over
            calls.make(action, answer_later)

    def _connect(self, process: SimulatedProcess, action: ConnectPeers) -> None:
        incarnation = process.machine.incarnation

        def act() -> None:
            if process.machine.incarnation == incarnation:
                self._call(process, action)

        self._cluster.send(process.party, process.party, Event("connect", act))

    def _call(self, process: SimulatedProcess, action: ConnectPeers) -> None:
        machine, meeting = process.machine, process.meeting
        for peer in meeting.begin(
            action.peers, machine.epoch, machine.incarnation, action.late, action.changing, action.together
        ):
            party = peer.port  # a simulated worker listens at its party
            if party not in self._cluster.processes:
                process.handle(PeersUnreachable(f"worker {peer.slot} is gone"))
                return
            meeting.note_answer(peer.slot)
            process.peers[peer.slot] = party
            process.cut.discard(party)
            self._greet(process.party, party, meeting.hello)
        early, process.early = process.early, []
        for hello, caller in early:
            self._call_peer(process, hello, caller)
        self._maybe_connected(process)

    def _await_call(self, process: SimulatedProcess, action: AwaitPeer) -> None:
        """Lets another worker take the slot of a peer."""
        process.peers.pop(action.peer.slot, None)
        process.meeting.expect_replacement(action.peer)
        early, process.early = process.early, []
        for hello, caller in early:
            self._call_peer(process, hello, caller)

    def _maybe_back(self, process: SimulatedProcess, slot: int) -> None:
        if process.meeting.back(slot):
            process.handle(PeerBack(slot))

    def _greet(self, caller: int, party: int, hello: PeerHello) -> None:
        def act() -> None:
            if party in self._cluster.processes:
                self._call_peer(self._cluster.processes[party], hello, caller)

        self._cluster.send(caller, party, Event(f"hello of worker {hello.slot}", act))

    def _call_peer(self, process: SimulatedProcess, hello: PeerHello, caller: int) -> None:
        other = self._cluster.processes.get(caller)
        if other is None or other.peers.get(process.slot) != process.party or process.party in other.cut:
            return  # the caller has hung up
        if other.meeting.hello != hello:
            return  # the caller has hung up, and has called again
        match process.meeting.admit(hello):
            case Acceptance.LATER:
                process.early.append((hello, caller))
            case Acceptance.OUT:
                self._cluster.count("refused a peer")
                self._cluster.lose_peer(other, process.slot, process.party, "refused")
            case Acceptance.IN:
                process.peers[hello.slot] = caller
                process.cut.discard(caller)
                self._maybe_back(process, hello.slot)
                self._maybe_connected(process)

    def _maybe_connected(self, process: SimulatedProcess) -> None:
        if process.meeting.complete():
            process.handle(PeersConnected())

    def _close_peers(self, process: SimulatedProcess) -> None:
        for party in [*process.peers.values(), *(caller for _, caller in process.early)]:
            peer = self._cluster.processes.get(party)
            if peer is not None and peer.peers.get(process.slot) == process.party:
                self._cluster.lose_peer(peer, process.slot, process.party, f"worker {process.slot} was reset")
        process.peers, process.early = {}, []
        process.meeting.over()

    def _require_storage(self) -> Storage:
        assert self._storage is not None, "a job without checkpoints wants nothing of the storage"
        return self._storage
