"""What the coordinator, the plan and one worker cost, by the number of workers. These are played: nothing is started, and
what they would say is made beforehand, so that only the coordinator's work is measured."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import msgspec

import tailrace as tr
from tailrace.coordinator.actions import Claim, Commit, Kill, Launch, MarkPublished, Send
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Fixed
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.view.progress import ProgressMaker
from tailrace.coordinator.view.view_makers import books_of
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId, decode, encode_marker
from tailrace.elements.markers import Barrier, Marker, Watermark
from tailrace.elements.timestamps import LAST_TIME
from tailrace.graph.plan import Plan
from tailrace.protocol import message_codec
from tailrace.protocol.deployment import Deploy, Deployed, Hello, Progress, Publish, Published, SubtaskReport
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.replay import Gained, KnownHistory, ReplayDone, Resume, WorkerLost
from tailrace.protocol.snapshot import Ack, Declined, OperatorAck, SubtaskAck, Transaction
from tailrace.protocol.termination import Quiet, RoundReport, WaveFacts, WaveReport
from tailrace.runtime.driver.machine_settings import nests_of
from tailrace.spark.shipping.plan_files import dump_job
from tailrace.state.format import TableInfo
from tailrace.state.manifest import Manifest, decode_manifest
from tailrace.task.channels.services import Services
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.slice.machine import Slice

from .loops import circle

WORKERS = (2, 16, 64, 256, 1000)
JOBS = ("keyed", "nest", "rounds", "standby")
BESIDE = 4
"""Workers in each executor of the job with standbys."""
STEPS = 200
"""Entries of each worker's history between two checkpoints of the job with standbys, of `ENTRY` bytes each."""
ENTRY = 24
MEMORY = 1 << 30
"""Of a worker, for its channels: what an environment has where it says nothing."""
GROUPS = 4096
"""Key groups: at least one for each worker."""
SECOND = 1_000_000
TAKEN = 3
"""How often a checkpoint, a wave and a round are taken; the median counts."""


@dataclass(frozen=True)
class ScaleSpec:
    job: str = "keyed"  # keyed | nest | rounds | standby
    workers: int = 2


# The dataflows.


def dataflow(job: str, workers: int) -> Plan:
    """Two exchanges by key and one in turn, or a loop with an exchange into it and one within, alone or in rounds."""
    env = tr.Environment(parallelism=workers, max_parallelism=GROUPS, memory=MEMORY, progress=False)
    records = env.from_collection([(key, 1, 0) for key in range(100)])
    if job in ("keyed", "standby"):
        counted = records.key_by(itemgetter(0)).count().key_by(itemgetter(1)).count()
        counted.rebalance().map(str).sink_to(tr.sinks.Print())
    else:
        rounds = tr.Rounds(max=1_000_000) if job == "rounds" else None
        records.iterate(circle, rounds=rounds).sink_to(tr.sinks.Print())
    return env._plan(env._pending())


# The coordinator, and everybody it speaks with.


class Played:
    """A coordinator whose workers, storage and clock are played. It does as its driver does: messages come and go as bytes,
    and behind each one, as if it had come alone, it looks at the clock."""

    def __init__(self, plan: Plan, workers: int, standby: bool = False) -> None:
        self.plan, self.workers, self.standby = plan, workers, standby
        self.job = dump_job(JobSpec("scale", 1, plan, MEMORY, checkpointing=True))
        self.machine = Coordinator(
            "scale",
            1,
            workers,
            self.job,
            run_id="run",
            max_parallelism=GROUPS,
            checkpoints=CheckpointSettings(origin="here"),
            restarts=Fixed(1000, 0),
            nests=nests_of(plan),
            standbys=0 if standby else None,
        )
        self.steps = 0
        """Entries of each worker's history."""
        self.history_bytes = self.resume_bytes = 0
        self.maker = ProgressMaker("id", "run", "scale", plan, 0)
        self.now = 100 * SECOND
        self.epochs = [0] * workers
        self.cpu: dict[str, list[float]] = {}
        """Milliseconds of CPU, by what they were for, each time."""
        self.sent: list[Send] = []
        self.wishes: list[Any] = []
        """Actions for others than workers since the last call."""
        self.deploys_made = self.deploy_bytes = self.peers_bytes = 0
        self._made = b""
        self.speech = message_codec.Speech()
        self.manifest: Manifest | None = None
        self.manifest_bytes = 0

    def begin(self, what: str) -> None:
        """Another time of something that is measured."""
        self.cpu.setdefault(what, []).append(0.0)
        self._what = what

    def hear(self, messages: Iterable[tuple[int, bytes]]) -> None:
        """Workers send these messages."""
        for slot, data in messages:
            begun = time.process_time()
            message = message_codec.decode_from_worker(data)
            if isinstance(message, Hello):
                epoch = self.machine.hello(message, self.now)
                assert epoch is not None
                self.epochs[slot] = epoch
            else:
                self.machine.message(slot, self.epochs[slot], message, self.now)
            self._turn(begun)

    def do(self, act: Any, *args: Any) -> None:
        """Something else happens to the coordinator: a method of it, and what it is called with before the time."""
        begun = time.process_time()
        act(*args, self.now)
        self._turn(begun)

    def _turn(self, begun: float) -> None:
        machine = self.machine
        machine.tick(self.now)
        actions, machine.actions = machine.actions, []
        for action in actions:
            if isinstance(action, Send):
                data = self.speech.encode(action.message)
                if isinstance(action.message, Deploy):
                    self.deploys_made += data is not self._made
                    self.deploy_bytes += len(data)
                    self._made = data
        machine.next_tick(self.now)
        self.cpu[self._what][-1] += (time.process_time() - begun) * 1000
        self.sent += [action for action in actions if isinstance(action, Send)]
        self.wishes += [action for action in actions if not isinstance(action, Send)]

    def requested(self, kind: Any) -> list[Any]:
        """Actions of one kind."""
        found = [wish for wish in self.wishes if isinstance(wish, kind)]
        self.wishes = [wish for wish in self.wishes if not isinstance(wish, kind)]
        return found

    def messages(self, kind: Any) -> list[Any]:
        """Messages of one kind to workers."""
        found = [send.message for send in self.sent if isinstance(send.message, kind)]
        self.sent = [send for send in self.sent if not isinstance(send.message, kind)]
        return found

    def all(self, message: Any) -> list[tuple[int, bytes]]:
        """A message as it comes from each of the workers."""
        return [(slot, message_codec.encode(message)) for slot in range(self.workers)]

    # What happens.

    def deploy(self) -> None:
        self.begin("deploy")
        self.do(self.machine.start)
        self.join(range(self.workers))
        self.peers_bytes = len(msgspec.msgpack.encode(self.machine.roster.peers()))
        self.start()

    def join(self, slots: Iterable[int]) -> None:
        """Workers that were started send `Hello`."""
        launches = {wish.slot: wish.launch for wish in self.requested(Launch)}
        hellos = [
            Hello(slot, *self._address(slot), slot, "scale", 1, launches[slot], executor=self._executor(slot))
            for slot in slots
        ]
        self.hear([(hello.slot, message_codec.encode(hello)) for hello in hellos])

    def _address(self, slot: int) -> tuple[str, int]:
        machine = self._beside(slot)[0] if self.standby else slot
        return f"10.0.{machine >> 8}.{machine & 255}", 40_000 + slot

    def _executor(self, slot: int) -> str:
        return str(slot // BESIDE) if self.standby else ""

    def start(self) -> None:
        """All have deployed."""
        self.hear(self.all(Deployed()))
        self.publish()
        assert self.machine.status is JobStatus.RUNNING, self.machine.status

    def publish(self) -> None:
        """What is to be published is, and what is to be marked."""
        for number in sorted({one.number for one in self.messages(Publish)}):
            self.hear([(0, message_codec.encode(Published(number)))])
        for wish in self.requested(MarkPublished):
            self.do(self.machine.mark_done, wish.path)

    def second(self) -> None:
        """A second goes by: all give a sign of life, and report twice."""
        self.begin("second")
        reports = [
            (
                slot,
                message_codec.encode(
                    Progress([self._report(vertex.id, slot) for vertex in self.plan.vertices], SECOND // 2)
                ),
            )
            for slot in range(self.workers)
        ]
        for half in range(2):
            self.now += SECOND // 2
            self.hear(reports)
            for slot in range(self.workers) if half else ():
                self.do(self.machine.heartbeat, slot, slot)
        self.do(lambda now: self.maker.make(self.machine.roster.slots, now, books_of(self.machine, now)))

    def _report(self, vertex: int, slot: int) -> SubtaskReport:
        return SubtaskReport(vertex, slot, 1000, 1000, 0, LAST_TIME, True, vertex == 0, 500_000, 1 << 20, 100)

    def checkpoint(self) -> None:
        """One, from its trigger until all that sinks had prepared is marked as published."""
        checkpoints = self.machine.checkpoints
        assert checkpoints is not None
        number = checkpoints.next_id
        acks = [(slot, message_codec.encode(self._ack(slot, number))) for slot in range(self.workers)]
        self.begin("checkpoint")
        self.do(self.machine.checkpoint, "somebody")
        self.now += SECOND // 10
        self.hear(acks)
        [commit] = self.requested(Commit)
        self.manifest, self.manifest_bytes = decode_manifest(commit.data, "it"), len(commit.data)
        self.do(self.machine.commit_done, number, self._path(self.manifest), "url")
        self.publish()

    def histories(self) -> None:
        """All report what they have done since the last time, and what they know of the workers beside them."""
        checkpoints = self.machine.checkpoints
        assert checkpoints is not None
        gained = Gained(self.steps, [bytes(ENTRY)] * STEPS, [(checkpoints.next_id, self.steps)])
        self.steps += STEPS
        reports = [
            (slot, message_codec.encode(gained if origin == slot else msgspec.structs.replace(gained, origin=origin)))
            for slot in range(self.workers)
            for origin in [*(one for one in self._beside(slot) if one != slot), slot]
        ]
        self.history_bytes = sum(len(data) for _, data in reports)
        self.begin("histories")
        self.hear(reports)

    def _beside(self, slot: int) -> range:
        first = slot // BESIDE * BESIDE
        return range(first, min(first + BESIDE, self.workers))

    def failover(self) -> None:
        """An executor is lost, and its workers are replaced while all others go on."""
        lost, takeovers = self._beside(self.workers // 2), self.machine.takeovers
        survivors = [slot for slot in range(self.workers) if slot not in lost]
        self.begin("failover")
        for slot in lost:
            self.do(self.machine.link_lost, slot, self.epochs[slot], "reset")
        known = {question.slice: question.known for question in self.messages(WorkerLost)}
        answers = [
            (
                slot,
                message_codec.encode(
                    KnownHistory(one, self._rest(known[one]), [(0, one, slot, 10, 7)], takeovers.turn)
                ),
            )
            for slot in survivors
            for one in lost
        ]
        self.hear(answers)
        for kill in self.requested(Kill):
            self.ended(kill.slot, kill.launch)
        self.join(lost)
        resumes = self.messages(Resume)
        assert len(resumes) == len(lost), self.machine.status
        self.resume_bytes = sum(len(message_codec.encode(resume)) for resume in resumes)
        for slot in lost:
            reported = takeovers._histories[slot]
            done = ReplayDone(reported.first + len(reported.messages) - 1)
            self.hear([(slot, message_codec.encode(done))])
        assert self.machine.attempts.restarts == 0 and takeovers.count == len(lost)

    def _rest(self, known: int) -> Gained:
        """A survivor's copy of a history, from the entry on that the coordinator does not know."""
        first = max(known, self.steps - STEPS)
        return Gained(first, [bytes(ENTRY)] * (self.steps - first))

    def abort(self) -> None:
        """One that a worker declines when half of the others have acked; the other half receive the abort too late."""
        checkpoints, half = self.machine.checkpoints, self.workers // 2
        assert checkpoints is not None
        number = checkpoints.next_id
        acks = [(slot, message_codec.encode(self._ack(slot, number))) for slot in range(self.workers)]
        self.begin("abort")
        self.do(self.machine.checkpoint, "somebody")
        self.hear([*acks[:half], (half, message_codec.encode(Declined(number, "it cannot"))), *acks[half + 1 :]])

    def _ack(self, slot: int, number: int) -> Ack:
        """Of a worker that has written what has changed since the checkpoint before, and of which a sink has prepared."""
        subtasks = []
        for vertex in self.plan.vertices:
            nodes = [self.plan.graph.node(ident) for ident in vertex.nodes]
            tables = [TableInfo("value", "value")]
            operators = [OperatorAck(n.uid, n.name, self.workers, stateful=True, tables=tables) for n in nodes]
            subtasks.append(SubtaskAck(vertex.id, slot, 1000, 100, 10_000, 1 << 16, operators))
        older = [] if self.manifest is None else [self.manifest.files[slot].name]
        prepared = [Transaction("sink", b"%064d" % slot)]
        return Ack(number, f"1/chk-{number}/w{slot}-{self.epochs[slot]}.state", 1 << 16, older, subtasks, prepared)

    def _path(self, manifest: Manifest) -> str:
        return f"{manifest.incarnation}/{manifest.checkpoint}.manifest"

    def wave(self, number: int) -> None:
        """All come to rest, and again when what was between them then has come, a wave goes through the nest, and finds that
        they have read feedback: `CallFinish`."""
        frames, received = [number + 1] * self.workers, (number + 1) * (self.workers - 1)
        quiet = [
            (slot, message_codec.encode(Quiet(0, [*frames[:slot], 0, *frames[slot + 1 :]], received - missing, number)))
            for missing in (1, 0)
            for slot in range(self.workers)
        ]
        facts = WaveFacts(ended=True, watermark=LAST_TIME, rested_min=number, rested_max=number, fed=True)
        self.now += SECOND // 10
        self.begin("wave")
        self.hear(quiet)
        self.hear(self.all(WaveReport(0, number + 1, facts)))

    def round(self, number: int) -> None:
        """All have ended a round, and feedback waits for the next one."""
        self.begin("round")
        self.hear(self.all(RoundReport(0, number, 10)))

    def restart(self) -> None:
        """A worker is lost, and all go on from the newest checkpoint."""
        lost = self.workers // 2
        self.begin("restart")
        self.do(self.machine.link_lost, lost, self.epochs[lost], "reset")
        reset = message_codec.encode(WasReset(self.machine.attempts.restarts))
        self.hear((slot, reset) for slot in range(self.workers) if slot != lost)
        for kill in self.requested(Kill):
            self.ended(kill.slot, kill.launch)
        self.join([lost])
        [_] = self.requested(Claim)
        assert self.manifest is not None
        self.do(self.machine.claim_done, self.machine.incarnation + 1, self.manifest, self._path(self.manifest))
        self.start()

    def ended(self, slot: int, launch: int) -> None:
        """A Spark job has ended."""
        self.do(lambda now: self.machine.slot_ended(slot, None, now, launch=launch))

    def end(self) -> None:
        """The job is cancelled, and all leave."""
        self.begin("end")
        self.do(self.machine.cancel)
        for slot in range(self.workers):
            self.do(self.machine.link_lost, slot, self.epochs[slot], "closed")
        for slot in range(self.workers):
            self.ended(slot, self.machine.roster.slots[slot].launches)
        assert self.machine.status is JobStatus.CANCELLED


def of_coordinator(played: Played, job: str) -> dict[str, Any]:
    """A job's life: its figures."""
    played.deploy()
    sent, made = played.deploy_bytes, played.deploys_made
    played.second()
    for number in range(TAKEN):
        if job == "standby":
            played.histories()
        if job != "rounds":
            played.checkpoint()
        if job == "nest":
            played.wave(number)
        if job == "rounds":
            played.round(number)
    if job == "rounds":
        played.checkpoint()
    played.abort()
    if job != "standby":
        played.restart()
    elif played.workers > BESIDE:
        played.failover()
    played.end()
    cpu = {f"{what}_ms": round(sorted(times)[len(times) // 2], 2) for what, times in played.cpu.items()}
    return {
        **cpu,
        "deploy_bytes": sent // played.workers,
        "deploy_bytes_in_all": sent,
        "deploys_made": made,
        "plan_bytes": len(played.job),
        "peers_bytes": played.peers_bytes,
        "manifest_bytes": played.manifest_bytes,
        "files": len(played.manifest.files) if played.manifest is not None else 0,
        **({"history_bytes": played.history_bytes, "resume_bytes": played.resume_bytes} if played.standby else {}),
    }


# A worker.


def of_worker(plan: Plan, workers: int) -> dict[str, Any]:
    """The slice of one worker: what it takes to build, its channels, and what it does when each sender says something."""
    slot = workers // 2
    begun = time.process_time()
    built = _slice(plan, slot)
    built.open()
    peers = built.peers()
    slice_ms = (time.process_time() - begun) * 1000
    channels_in = sum(len(task.gate.channels) for task in built.tasks)
    channels_out = sum(len(task.outbox.channels) for task in built.tasks)
    window = max(channel.flow.window for task in built.tasks for channel in task.gate.channels.values())
    tracemalloc.start()
    measured = _slice(plan, slot)
    measured.open()
    bytes_of_slice, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "slice_ms": round(slice_ms, 2),
        "slice_bytes": bytes_of_slice,
        "channels_in": channels_in,
        "channels_out": channels_out,
        "peers": len(peers),
        "window": window,
        "windows_bytes": window * channels_in,
        "watermark_ms": min(_mark(built, Watermark(1)), _mark(built, Watermark(2))),
        "barrier_ms": _mark(built, Barrier(CutRequest(1))),
        "overtaking_ms": overtaking(plan, slot),
    }


def overtaking(plan: Plan, slot: int) -> float:
    """CPU, in milliseconds, when every sender of one exchange sends a barrier that waits for no record."""
    held, cut = _slice(plan, slot, overtakes=True), CutRequest(1, overtakes_after=0)
    held.open()
    held.trigger(cut)
    return _mark(held, Barrier(cut))


def _slice(plan: Plan, slot: int, overtakes: bool = False) -> Slice:
    services = Services(random.Random, max_parallelism=GROUPS, checkpointing=True, overtaking=overtakes)
    return Slice(plan, slot, 0, services, MEMORY)


def _mark(held: Slice, marker: Marker) -> float:
    """CPU, in milliseconds, when every sender of one exchange sends a marker."""
    edge = next(edge for edge in held.plan.edges if len(held.plan.targets(edge, 0)) == held.plan.slots)
    task, spent, now = held.by_vertex[edge.target], 0.0, 0
    for source in range(held.plan.slots):
        channel = ChannelId(edge.id, source, held.slot)
        data = encode_marker(channel, 1, 0, 0, marker)
        begun = time.process_time()
        if source == held.slot:
            task.arrive(channel, 0, marker, 0)
        else:
            held.receive(decode(data), source)
        while held.step(task, now, 1000) is None:
            now += 1
        held.actions.clear()
        spent += (time.process_time() - begun) * 1000
    return round(spent, 2)


def run(spec: ScaleSpec) -> dict[str, Any]:
    dataflow(spec.job, 1)  # what is imported for the first time
    begun = time.process_time()
    plan = dataflow(spec.job, spec.workers)
    plan_ms = (time.process_time() - begun) * 1000
    return {
        "plan_ms": round(plan_ms, 2),
        **of_coordinator(Played(plan, spec.workers, standby=spec.job == "standby"), spec.job),
        **of_worker(plan, spec.workers),
    }
