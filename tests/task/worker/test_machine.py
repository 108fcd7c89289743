"""A worker as a machine: it joins, deploys its slice, steps it, reports, publishes and leaves; driven by hand."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.elements.frame_codec import ChannelId, decode, encode_batch, encode_grant, encode_marker
from tailrace.elements.markers import Barrier, EndOfInput
from tailrace.errors import InternalError, ProtocolViolation
from tailrace.protocol.deployment import (
    Deploy,
    Deployed,
    Failed,
    Leave,
    OperatorEvent,
    Peer,
    Phase,
    Progress,
    Publish,
    Published,
    Start,
    SubtasksFinished,
    Welcome,
)
from tailrace.protocol.recovery import Reset, WasReset
from tailrace.protocol.snapshot import Abort, Ack, Complete, Declined, Trigger
from tailrace.protocol.termination import EventTimeMoved, Quiet
from tailrace.state.memory_backend import MemoryBackend
from tailrace.task.channels.outbox import MAX_AGE
from tailrace.task.contract.actions import (
    CallSink,
    ClosePeers,
    ConnectPeers,
    DropState,
    Exit,
    ToCoordinator,
    ToPeer,
    WriteState,
)
from tailrace.task.contract.events import (
    CoordinatorLost,
    CoordinatorSaid,
    DriverFailed,
    Encode,
    Flush,
    FrameArrived,
    FreezeTook,
    MessageTooLarge,
    PeerLost,
    PeersConnected,
    PeersUnreachable,
    ReportDue,
    StateNotWritten,
    StateWritten,
    Step,
)
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.contract.sinkcalls import call_sink
from tailrace.task.contract.tuning import Tuning
from tailrace.task.slice.turns import PATIENCE
from tailrace.task.subtask.idleness import Idle, Reason
from tailrace.task.worker.attempt import Urgency
from tailrace.task.worker.attribution import internal
from tailrace.task.worker.machine import Worker
from tailrace.task.worker.publishing import in_parts

Build = Callable[[tr.Environment], Any]


class Silent(tr.Source):
    """A split that never has a record."""

    def splits(self, parallelism: int) -> list[int]:
        return [0]

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return NoRecords()


class NoRecords(tr.Reader):
    position = None

    def read(self, limit: int, now: float) -> list[Any]:
        return []


class Driven:
    """A worker of a job, and who drives it."""

    def __init__(
        self,
        build: Build,
        *,
        slot: int = 0,
        parallelism: int = 1,
        checkpointing: bool = False,
        tuning: Tuning | None = None,
        **settings: Any,
    ) -> None:
        env = tr.Environment(parallelism=parallelism, **settings)
        build(env)
        self.plan = env._plan(env._pending())
        self.spec = JobSpec("job", 1, self.plan, env.memory, "run", 0, env.copy_records, env.debug, checkpointing)

        def backend(spec: JobSpec, uid: str, subtask: int) -> MemoryBackend:
            return MemoryBackend(uid=uid, subtask=subtask)

        self.machine = Worker(slot, lambda data: self.load(data), random.Random, backend, tuning=tuning)
        self.peers = [Peer(i, f"h{i}", i, 1) for i in range(parallelism)]

    def load(self, data: bytes) -> JobSpec:
        return self.spec

    def actions(self) -> list[Any]:
        actions, self.machine.actions = self.machine.actions, []
        return actions

    def said(self) -> list[Any]:
        """Messages to the coordinator since the last call. Sinks are called at once."""
        found = []
        while actions := self.actions():
            found += [action.message for action in actions if isinstance(action, ToCoordinator)]
            for action in actions:
                if isinstance(action, CallSink):
                    self.machine.handle(call_sink(action))
        return found

    def deploy(self) -> "Driven":
        self.machine.handle(CoordinatorSaid(Welcome(1)))
        self.machine.handle(CoordinatorSaid(Deploy(b"", self.peers)))
        return self

    def start(self) -> "Driven":
        self.deploy()
        self.machine.handle(PeersConnected())
        self.machine.handle(CoordinatorSaid(Start()))
        self.actions()
        return self

    def steps(self, most: int = 1000) -> list[Any]:
        """Steps the tasks until all are idle or it stops by itself; the last answers."""
        idles: list[Any] = []
        for _ in range(most):
            idles = []
            for task in self.machine.tasks():
                if not self.machine.stepping:
                    return idles
                idles.append(self.machine.handle(Step(task.id.vertex, 0, 100)))
            if all(idle is not None for idle in idles) and not self.machine.handle(Flush()):
                return idles
        raise AssertionError("the worker is never idle")


def simple(env: tr.Environment) -> None:
    env.from_source(tr.sources.Sequence(0, 10)).sink_to(tr.sinks.Callback(lambda record: None))


def shuffled(env: tr.Environment) -> None:
    env.from_source(tr.sources.Sequence(0, 10)).key_by(lambda x: x).count().sink_to(tr.sinks.Callback(lambda r: None))


# The good course.


def test_a_worker_from_its_welcome_to_its_exit() -> None:
    d = Driven(simple)
    assert not d.machine.stepping
    d.deploy()
    assert d.machine.epoch == 1
    assert d.actions() == [ConnectPeers(())]
    d.machine.handle(PeersConnected())
    assert d.said() == [Deployed()]
    assert not d.machine.stepping
    d.machine.handle(CoordinatorSaid(Start()))
    assert d.machine.stepping
    d.steps()
    assert d.said() == [SubtasksFinished([])]
    assert d.machine.phase is Phase.FINISHED and not d.machine.stepping
    d.machine.handle(CoordinatorSaid(Publish([])))
    assert d.said() == [Published()]
    d.machine.handle(CoordinatorSaid(Leave("the job has finished")))
    assert d.actions() == [Exit("the job has finished")]
    d.machine.handle(CoordinatorSaid(Leave("again")))
    d.machine.handle(CoordinatorLost("closed"))
    assert d.actions() == []


def test_a_worker_connects_to_those_it_has_channels_with() -> None:
    def connects(d: Driven) -> list[Any]:
        return [action for action in d.deploy().actions() if isinstance(action, ConnectPeers)]

    d = Driven(shuffled, slot=1, parallelism=3)
    assert connects(d) == [ConnectPeers((d.peers[0], d.peers[2]))]
    assert connects(Driven(simple, slot=1, parallelism=3)) == [ConnectPeers(())]


def test_figures_are_reported_while_it_runs() -> None:
    d = Driven(simple)
    d.machine.handle(ReportDue({}, 0, {}))
    d.start()
    d.steps()
    d.actions()
    d.machine.handle(ReportDue({0: 77}, 1000, {"bad token": 1}))
    [progress] = d.said()
    assert isinstance(progress, Progress)
    [report] = progress.subtasks
    assert (report.records_in, report.records_out, report.busy_micros, report.finished) == (10, 10, 77, True)
    assert (progress.elapsed_micros, progress.refused) == (1000, {"bad token": 1})


# What must not come.


@pytest.mark.parametrize("message", [Start(), Publish([]), Deploy(b"", [])], ids=lambda m: type(m).__name__)
def test_a_word_at_the_wrong_time_is_reported(message: Any) -> None:
    d = Driven(simple)
    with pytest.raises(ProtocolViolation, match="came while the worker was joining"):
        d.machine.handle(CoordinatorSaid(message))


BAD_FRAMES: dict[str, tuple[bytes, str]] = {
    "no frame": (b"nonsense", "worker 1 broke the protocol: a frame of 8 bytes"),
    "a channel of another worker": (
        encode_batch(ChannelId(0, 1, 2), 1, 0, 0, Rows([1])),
        "channel e0:1->2 is not in this worker's part of the plan",
    ),
    "a channel of another sender": (
        encode_batch(ChannelId(0, 2, 0), 1, 0, 0, Rows([1])),
        "worker 1 sent on channel e0:2->0, which it does not write",
    ),
    "an edge that is not there": (
        encode_batch(ChannelId(9, 1, 0), 1, 0, 0, Rows([1])),
        "channel e9:1->0 is not in this worker's part of the plan",
    ),
    "a later incarnation": (
        encode_batch(ChannelId(0, 1, 0), 2, 0, 0, Rows([1])),
        "a frame of incarnation 2, this is 1",
    ),
    "a gap": (encode_batch(ChannelId(0, 1, 0), 1, 0, 7, Rows([1])), "record 7 came where 0 was due"),
    "more than the window": (
        encode_batch(ChannelId(0, 1, 0), 1, 0, 1, Rows([b"x" * 3_000_000])),
        "bytes arrived where",
    ),
    "a grant for another's channel": (
        encode_grant(ChannelId(0, 0, 2), 1, 0, 5),
        "worker 1 granted for channel e0:0->2, which it does not read",
    ),
}


@pytest.mark.parametrize("what", BAD_FRAMES)
def test_a_frame_that_must_not_come_fails_the_job_and_names_its_sender(what: str) -> None:
    data, why = BAD_FRAMES[what]
    d = Driven(shuffled, parallelism=3).start()
    if what == "more than the window":
        d.machine.handle(FrameArrived(encode_batch(ChannelId(0, 1, 0), 1, 0, 0, Rows([b"x" * 3_000_000])), 1))
        assert d.said() == []
    d.machine.handle(FrameArrived(data, 1))
    [failed] = d.said()
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.peer) == ("peer", 1)
    assert why in failed.message
    assert not d.machine.stepping


def test_a_frame_of_an_older_incarnation_is_dropped_at_the_door() -> None:
    d = Driven(shuffled, parallelism=3).start()
    d.machine.handle(FrameArrived(encode_batch(ChannelId(0, 1, 0), 0, 0, 5, Rows([1])), 1))
    assert d.said() == [] and d.machine.slice is not None and d.machine.slice.stale_frames == 1


def test_frames_may_come_before_the_start() -> None:
    d = Driven(shuffled, parallelism=2).deploy()
    d.machine.handle(PeersConnected())
    d.actions()
    d.machine.handle(FrameArrived(encode_batch(ChannelId(0, 1, 0), 1, 0, 0, Rows([5])), 1))
    d.machine.handle(FrameArrived(encode_marker(ChannelId(0, 1, 0), 1, 0, 1, EndOfInput()), 1))
    assert d.actions() == []
    d.machine.handle(CoordinatorSaid(Start()))
    d.steps()
    assert d.machine.phase is Phase.FINISHED


# Why a task does nothing.


def test_a_task_says_why_it_does_nothing() -> None:
    d = Driven(shuffled, parallelism=2).start()
    assert d.machine.handle(Step(d.machine.tasks()[0].id.vertex, 0, 100)) == Idle(Reason.NO_INPUT)
    d.steps()
    # The source has ended, the count waits for the other worker.
    assert [idle.reason for idle in d.steps()] == [Reason.NO_INPUT, Reason.FINISHED]


def test_without_credit_a_task_waits_and_says_so() -> None:
    def large(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Generator(lambda i: b"x" * 100, count=4)).broadcast()
        numbers.map(len).sink_to(tr.sinks.Callback(lambda record: None))

    d = Driven(large, parallelism=2, tuning=Tuning(window=64)).start()
    idles = d.steps()
    assert [idle.reason for idle in idles] == [Reason.NO_INPUT, Reason.NO_CREDIT]
    frames = [action for action in d.actions() if isinstance(action, ToPeer)]
    assert len(frames) == 1  # larger than the window, and alone
    d.machine.handle(FrameArrived(encode_grant(ChannelId(0, 0, 1), 1, 0, 1_000_000), 1))
    assert d.machine.handle(Step(d.machine.tasks()[1].id.vertex, 0, 100)) is None


def test_a_task_that_awaits_a_timer_is_quiet_and_says_until_when() -> None:
    class Waits(tr.KeyedProcessFunction):
        def process(self, value: int, ctx: tr.Context) -> None:
            ctx.set_timer(processing_time=5.0)

        def on_timer(self, timestamp: float, ctx: tr.Context) -> None: ...

    def timed(env: tr.Environment) -> None:
        env.from_collection([1]).key_by(abs).process(Waits()).sink_to(tr.sinks.Callback(lambda record: None))

    d = Driven(timed).start()
    assert d.steps()[0] == Idle(Reason.QUIET, 5_000_000)
    assert d.machine.handle(Step(d.machine.tasks()[0].id.vertex, 5_000_000, 100)) is None


# Whose turn it is.


def awake(d: Driven, now: int = 0) -> list[str]:
    """The tasks that have a turn, by the names of their first operators."""
    return [task.chain.root.node.name for task in d.machine.awake(now)]


def test_a_task_with_nothing_to_do_is_not_asked_until_something_happens_to_it() -> None:
    d = Driven(shuffled, slot=1, parallelism=2, debug=True).start()
    count = awake(d)[0]
    d.steps()
    assert count not in awake(d)
    d.machine.handle(FrameArrived(encode_batch(ChannelId(0, 0, 1), 1, 0, 0, Rows([5])), 0))
    assert count in awake(d)
    d.steps()
    assert count not in awake(d)


def test_many_operators_cost_no_more_than_those_that_have_something_to_do() -> None:
    """All of them had a turn before each step: a thousand records through five hundred operators took minutes."""

    def program(env: tr.Environment) -> None:
        stream = env.from_source(tr.sources.Sequence(0, 10))
        for _ in range(60):
            stream = stream.rebalance().map(lambda x: x)
        stream.sink_to(tr.sinks.Callback(seen.append))

    seen: list[int] = []
    d = Driven(program).start()
    done = idle = 0
    while d.machine.phase is not Phase.FINISHED:
        for task in d.machine.awake(0):
            if d.machine.handle(Step(task.id.vertex, 0, 1)) is None:
                done += 1
                break
            idle += 1
        else:
            d.machine.handle(Flush())
    assert seen == list(range(10))
    assert done > 100 and idle < 3 * done


def test_a_source_is_always_asked() -> None:
    """No event announces its records."""
    d = Driven(lambda env: env.from_source(Silent()).sink_to(tr.sinks.Callback(lambda record: None))).start()
    d.steps()
    assert len(awake(d)) == 1


def test_a_task_with_a_timer_sleeps_until_it_is_due() -> None:
    class Waits(tr.KeyedProcessFunction):
        def process(self, value: int, ctx: tr.Context) -> None:
            ctx.set_timer(processing_time=5.0)

        def on_timer(self, timestamp: float, ctx: tr.Context) -> None: ...

    def timed(env: tr.Environment) -> None:
        env.from_source(tr.sources.Sequence(0, 1)).union(env.from_source(Silent())).key_by(abs).process(
            Waits(), name="waits"
        ).sink_to(tr.sinks.Callback(lambda record: None))

    d = Driven(timed).start()
    d.steps()
    assert "waits" not in awake(d, 4_999_999) and "waits" in awake(d, 5_000_000)


def busy(d: Driven, batches: int) -> None:
    """Hands over frames of the other worker, which always has records for the last task here."""
    for number in range(batches):
        d.machine.handle(FrameArrived(encode_batch(ChannelId(0, 1, 0), 1, 0, number, Rows([number])), 1))


def first_step(d: Driven) -> Any:
    """A step of the first task that has something to do, as the worker's process makes it."""
    for task in d.machine.awake(0):
        if d.machine.handle(Step(task.id.vertex, 0, 1)) is None:
            return task
    raise AssertionError("the worker has nothing to do")


def endless(env: tr.Environment) -> None:
    env.from_source(tr.sources.Sequence(0, None)).rebalance().map(abs).sink_to(tr.sinks.Callback(lambda record: None))


def test_a_source_is_read_though_other_workers_always_have_records_for_the_tasks_behind_it() -> None:
    d = Driven(endless, parallelism=2, debug=True).start()
    busy(d, 200)
    stepped = [first_step(d) for _ in range(100)]
    reads = [at for at, task in enumerate(stepped) if task.chain.source is not None]
    assert len(reads) >= 5 and max(b - a for a, b in itertools.pairwise(reads)) <= 2 * PATIENCE


def test_a_cut_is_made_at_once_though_a_task_behind_it_always_has_records() -> None:
    """Else a job whose slowest task is never without records would not complete a checkpoint."""
    d = Driven(endless, parallelism=2, debug=True, checkpointing=True).start()
    busy(d, 200)
    first_step(d)
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    assert first_step(d).cuts.made == 1


def passing(env: tr.Environment) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 10)).rebalance().map(abs, name="passes").rebalance()
    numbers.map(abs).sink_to(tr.sinks.Callback(lambda record: None))


def passer() -> tuple[Driven, Any]:
    """A worker that has read its own share, and its task that reads from both workers and writes to both."""
    d = Driven(passing, slot=1, parallelism=2, debug=True).start()
    d.steps()
    d.actions()
    [passes] = [task for task in d.machine.tasks() if task.chain.root.node.name == "passes"]
    return d, passes


def arrive(d: Driven, at: int, values: range) -> None:
    """Hands over a frame of the other worker to the task that passes on."""
    d.machine.handle(FrameArrived(encode_batch(ChannelId(0, 0, 1), 1, 0, at, Rows(list(values))), 0))


def frames(d: Driven) -> list[int]:
    """How many records each frame has that went to the other worker."""
    return [decode(action.data).count for action in d.actions() if isinstance(action, ToPeer)]


def test_records_of_a_task_that_has_read_all_that_is_there_go_at_once() -> None:
    d, passes = passer()
    arrive(d, 0, range(6))
    assert d.machine.handle(Step(passes.id.vertex, 0, 100)) is None
    assert frames(d) == [3]


def test_records_of_a_task_that_always_has_little_to_read_wait_for_one_round_of_its_channels() -> None:
    """The records waited for 5 ms where the worker was never idle, however few records kept it busy."""
    d, passes = passer()
    passes.gate._join = lambda channel, batch, limit: batch  # frames come while others are read
    for at in range(0, 60, 6):
        arrive(d, at, range(6))
    gone = []
    for _ in range(8):
        assert d.machine.handle(Step(passes.id.vertex, 0, 100)) is None
        gone.append(frames(d))
    assert gone == [[], [6], [], [6], [], [6], [], [6]], "two channels lead to the task"


def test_records_of_a_task_with_more_to_read_than_it_may_wait_for_company() -> None:
    d, passes = passer()
    arrive(d, 0, range(40))
    for _ in range(3):
        assert d.machine.handle(Step(passes.id.vertex, 0, 10)) is None
    assert frames(d) == []
    d.machine.handle(Step(passes.id.vertex, 0, 10))
    assert frames(d) == [20], "that was all"


def test_a_source_that_gives_less_than_it_may_is_heard_at_once() -> None:
    def paced(env: tr.Environment) -> None:
        env.from_source(tr.sources.Sequence(0, None, rate=1e6)).rebalance().sink_to(tr.sinks.Callback(abs))

    d = Driven(paced, parallelism=2, debug=True).start()
    source = next(task for task in d.machine.tasks() if task.chain.source is not None)
    sent = []
    for now in (0, 0, 20, 30, 1000, 1010):
        d.machine.handle(Step(source.id.vertex, now, 12))
        sent += [(now, count) for count in frames(d)]
    assert sent == [(20, 5), (30, 3)], "at 1,000 there is more than a step may take, and behind that still"


def test_what_waits_to_be_sent_wakes_a_task_when_it_is_old() -> None:
    d, passes = passer()
    arrive(d, 0, range(2000))
    for _ in range(2):
        d.machine.handle(Step(passes.id.vertex, 0, 4000))
    assert frames(d) == [], "as fast as they come, the frame will be full in no time"
    assert "passes" not in awake(d, MAX_AGE - 1) and "passes" in awake(d, MAX_AGE)
    assert d.machine.handle(Step(passes.id.vertex, MAX_AGE, 100)) is None
    assert frames(d) == [1000]


def test_a_task_that_sleeps_and_has_something_to_do_is_an_error_in_debug_runs() -> None:
    d = Driven(shuffled, slot=1, parallelism=2, debug=True).start()
    d.steps()
    d.machine.handle(FrameArrived(encode_batch(ChannelId(0, 0, 1), 1, 0, 0, Rows([5])), 0))
    [count, _] = d.machine.tasks()
    count._sleeps_until = 1
    with pytest.raises(InternalError, match="C3"):
        awake(d)


def test_a_task_that_wants_something_though_nothing_happened_to_it_is_an_error_in_debug_runs() -> None:
    d = Driven(shuffled, slot=1, parallelism=2, debug=True).start()
    d.steps()
    [count, source] = d.machine.tasks()
    count.cuts.declined.append(7)
    d.machine.handle(Step(source.id.vertex, 0, 100))
    [failed] = d.said()
    assert "K5" in failed.message


def test_what_a_silent_source_says_to_a_task_of_the_same_worker_is_read_before_the_worker_rests() -> None:
    """The task had its turn before the source: it is to have another one, and not when the next message happens to come."""

    def program(env: tr.Environment) -> None:
        silent = env.from_source(Silent()).assign_timestamps(float, idle_after=1.0)
        silent.rebalance().map(abs).sink_to(tr.sinks.Callback(lambda record: None))

    d = Driven(program, parallelism=1).start()
    [_, source] = d.machine.tasks()
    assert d.steps()
    steps = [d.machine.handle(Step(source.id.vertex, now, 100)) for now in (0, 2_000_000)]
    assert steps[0] is not None and steps[1] is None
    assert len(awake(d, 2_000_000)) == 2


# Failures.


def broken(env: tr.Environment) -> None:
    env.from_collection([1, 0]).map(lambda x: 1 // x, name="bad").sink_to(tr.sinks.Callback(lambda record: None))


def test_a_failure_is_reported_once_and_nothing_is_stepped_after_it() -> None:
    d = Driven(broken).start()
    d.steps()
    [failed] = d.said()
    assert (failed.kind, failed.operator, failed.subtask, failed.record) == ("user", "bad", 0, "0")
    assert not d.machine.stepping and d.machine.handle(Flush()) is False
    d.machine.handle(PeerLost(1, "closed"))
    d.machine.handle(PeersUnreachable("too late"))
    d.machine.handle(DriverFailed(internal(ValueError("late"))))
    d.machine.handle(ReportDue({}, 0, {}))
    d.machine.handle(FrameArrived(b"nonsense", 1))
    d.machine.handle(CoordinatorSaid(Publish([])))
    assert d.actions() == []
    d.machine.handle(CoordinatorSaid(Leave("the job has failed")))
    assert d.actions() == [Exit("the job has failed")]


def test_a_lost_peer_fails_the_job_only_while_it_is_needed() -> None:
    d = Driven(shuffled, parallelism=2).start()
    d.machine.handle(PeerLost(1, "connection reset"))
    [failed] = d.said()
    assert (failed.kind, failed.peer, failed.message) == (
        "peer",
        1,
        "lost the connection to worker 1: connection reset",
    )
    done = Driven(simple).start()
    done.steps()
    done.actions()
    done.machine.handle(PeerLost(1, "it has left"))
    assert done.actions() == []


def test_who_cannot_connect_says_so() -> None:
    d = Driven(shuffled, parallelism=2).deploy()
    d.actions()
    d.machine.handle(PeersUnreachable("cannot reach worker 1"))
    assert [message.message for message in d.said()] == ["cannot reach worker 1"]
    d.machine.handle(PeersConnected())
    assert d.said() == []


@pytest.mark.parametrize("started", [False, True])
def test_a_lost_coordinator_is_a_reason_to_leave(started: bool) -> None:
    d = Driven(simple)
    if started:
        d.start()
    d.machine.handle(CoordinatorLost("connection reset"))
    assert d.actions() == [Exit("lost the coordinator: connection reset")]


def test_a_plan_that_cannot_be_read_is_reported() -> None:
    d = Driven(simple)

    def missing(data: bytes) -> JobSpec:
        raise ModuleNotFoundError("No module named 'theirs'", name="theirs")

    d.load = missing  # type: ignore
    d.deploy()
    [failed] = d.said()
    assert failed.kind == "import"
    assert failed.message.startswith("worker 0 cannot import theirs: install it there, or ship it: tailrace run --ship")

    def wrong(data: bytes) -> JobSpec:
        raise AttributeError("Can't get attribute 'Mine' on <module '__main__'>")

    d = Driven(simple)
    d.load = wrong  # type: ignore
    d.deploy()
    [failed] = d.said()
    assert failed.kind == "user" and "Can't get attribute 'Mine'" in failed.message


def test_functions_are_closed_when_it_leaves_and_their_errors_kept() -> None:
    closed: list[str] = []

    class Closing(tr.MapFunction):
        def map(self, value: Any) -> Any:
            return value

        def close(self) -> None:
            closed.append("once")
            raise ValueError("will not")

    def program(env: tr.Environment) -> None:
        env.from_collection([1]).map(Closing()).sink_to(tr.sinks.Callback(lambda record: None))

    d = Driven(program).start()
    d.machine.handle(CoordinatorSaid(Leave("the job was cancelled")))
    d.machine.handle(CoordinatorLost("closed"))
    assert closed == ["once"]
    assert [str(error) for error in d.machine.close_errors] == ["will not"]


def test_a_text_that_could_not_be_sent_is_made_so() -> None:
    def fail(value: Any) -> None:
        raise ValueError("half a pair: \ud800")

    d = Driven(lambda env: env.from_collection([1]).map(fail).sink_to(tr.sinks.Callback(lambda r: None))).start()
    d.steps()
    [failed] = d.said()
    assert "half a pair: ?" in failed.message


# Checkpoints.


def counted(env: tr.Environment) -> None:
    env.from_source(tr.sources.Sequence(0, 10)).key_by(lambda x: x).count().sink_to(tr.sinks.Callback(lambda r: None))


def encoded(d: Driven) -> list[Any]:
    """Encodes whatever there is. Returns the actions that follow."""
    while d.machine.encoding:
        d.machine.handle(Encode(5, 1000))
    return d.actions()


def test_a_checkpoint_of_a_worker_from_its_trigger_to_its_ack() -> None:
    d = Driven(counted, checkpointing=True).start()
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    d.steps()
    d.machine.handle(FreezeTook(d.machine.tasks()[-1].id.vertex, 33))
    [write] = [action for action in encoded(d) if isinstance(action, WriteState)]
    assert (write.checkpoint, write.name, write.last) == (1, "1/chk-1/w0-1.state", True)
    d.machine.handle(StateWritten(1, 100))
    [ack] = d.said()
    assert isinstance(ack, Ack)
    assert (ack.checkpoint, ack.file, ack.size) == (1, write.name, sum(map(len, write.data)))
    assert (ack.older, ack.prepared, ack.write_micros) == ([], [], 95)
    assert [subtask.vertex for subtask in ack.subtasks] == [0, 1] or [s.vertex for s in ack.subtasks] == [1, 0]
    assert 33 in [subtask.freeze_micros for subtask in ack.subtasks]
    d.machine.handle(StateWritten(1, 200))
    assert d.said() == [], "once"


def test_a_loop_that_rests_is_reported_though_checkpoints_never_let_its_worker_rest() -> None:
    """Waves begin when all workers report that nothing is on its way. Barriers are, while checkpoints come quickly;
    they are no work, and each worker reports what has come to rest when its file is durable."""

    def program(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 3))
        numbers.iterate(lambda s: (s.filter(lambda x: False), s)).sink_to(tr.sinks.Callback(lambda r: None))

    d = Driven(program, checkpointing=True).start()
    for _ in range(20):  # no `Flush` comes: there is always something else to do
        for task in d.machine.tasks():
            d.machine.handle(Step(task.id.vertex, 0, 100))
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    for _ in range(20):
        for task in d.machine.tasks():
            d.machine.handle(Step(task.id.vertex, 0, 100))
            encoded(d)
    d.machine.handle(StateWritten(1, 100))
    assert [type(message) for message in d.said()] == [Ack, EventTimeMoved, Quiet]


def test_a_file_is_written_in_pieces_and_sealed_when_every_task_is_in_it() -> None:
    d = Driven(counted, checkpointing=True, tuning=Tuning(chunk=1)).start()
    d.steps()
    d.actions()
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    d.steps()
    writes = [action for action in encoded(d) if isinstance(action, WriteState)]
    assert len(writes) > 1 and [write.last for write in writes] == [False] * (len(writes) - 1) + [True]
    assert b"".join(b"".join(write.data) for write in writes).startswith(b"TRST")


USUAL = CutRequest(1, overtakes_after=0)
SAVEPOINT = CutRequest(1, CutKind.SAVEPOINT)
UNALIGNED = CutRequest(1, CutKind.SAVEPOINT, overtakes_after=0)
STOP = CutRequest(1, CutKind.SAVEPOINT, hold=True)


@pytest.mark.parametrize(
    ("cut", "urgency"),
    [
        (USUAL, Urgency.USUAL),
        (SAVEPOINT, Urgency.USUAL),
        (UNALIGNED, Urgency.IN_FLIGHT),
        (STOP, Urgency.LAST),
        (CutRequest(1, CutKind.FINAL), Urgency.LAST),
    ],
)
def test_state_that_a_user_waits_for_while_the_job_is_behind_comes_before_most_records(
    cut: CutRequest, urgency: Urgency
) -> None:
    d = Driven(counted, checkpointing=True).start()
    d.machine.handle(CoordinatorSaid(Trigger(cut)))
    d.steps()
    found = set()
    while d.machine.encoding:
        found.add(d.machine.urgency)
        d.machine.handle(Encode(5, 1))
    assert found == {urgency}


@pytest.mark.parametrize("end", [Abort(2), Complete(2), StateWritten(2, 100)], ids=lambda end: type(end).__name__)
def test_an_earlier_snapshot_in_the_way_of_such_a_savepoint_is_as_urgent_until_that_is_over(end: Any) -> None:
    d = Driven(counted, checkpointing=True).start()
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    d.steps()
    assert d.machine.encoding and d.machine.urgency is Urgency.USUAL
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(2, CutKind.SAVEPOINT, overtakes_after=0))))
    assert d.machine.urgency is Urgency.IN_FLIGHT
    if isinstance(end, StateWritten):
        while d.machine.encoding:
            d.machine.handle(Encode(5, 1000))
            d.steps()
    d.machine.handle(end if isinstance(end, StateWritten) else CoordinatorSaid(end))
    assert d.machine.urgency is Urgency.USUAL


def test_with_checkpoints_tasks_that_have_finished_live_on_for_those_to_come() -> None:
    d = Driven(counted, checkpointing=True).start()
    d.steps()
    assert d.said() == [SubtasksFinished([])]
    assert d.machine.phase is Phase.FINISHED and d.machine.stepping
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1, CutKind.FINAL))))
    d.steps()
    assert [type(action) for action in encoded(d)] == [WriteState]
    d.machine.handle(CoordinatorSaid(Complete(1)))
    d.machine.handle(CoordinatorSaid(Publish([], 1)))
    assert d.said() == [Published(1)]


def test_a_file_that_cannot_be_written_declines_the_checkpoint_and_the_job_goes_on() -> None:
    d = Driven(counted, checkpointing=True).start()
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    d.steps()
    encoded(d)
    d.machine.handle(StateNotWritten(1, "the disk is full"))
    assert d.said() == [Declined(1, "the disk is full", out_of_reach=True)]
    assert d.machine.stepping
    d.machine.handle(CoordinatorSaid(Abort(1)))
    assert d.actions() == [DropState(1, "1/chk-1/w0-1.state")]
    d.machine.handle(StateNotWritten(1, "again"))
    d.machine.handle(StateWritten(1, 0))
    assert d.actions() == []


def test_an_abort_while_it_is_encoded_or_written_forgets_it() -> None:
    d = Driven(counted, checkpointing=True).start()
    d.steps()
    d.actions()
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    d.machine.handle(CoordinatorSaid(Abort(1)))
    assert d.actions() == [DropState(1, "1/chk-1/w0-1.state")]
    d.steps()
    assert not d.machine.encoding and d.actions() == []
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(2))))
    d.steps()
    d.machine.handle(CoordinatorSaid(Abort(2)))
    assert not d.machine.encoding
    encoded(d)
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(3))))
    d.steps()
    assert [action.checkpoint for action in encoded(d) if isinstance(action, WriteState)] == [3]


def test_one_that_a_later_one_overtook_is_declined_with_its_task() -> None:
    d = Driven(shuffled, parallelism=2, checkpointing=True).start()
    channel = ChannelId(0, 1, 0)
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    d.steps()
    d.machine.handle(FrameArrived(encode_marker(channel, 1, 0, 0, Barrier(CutRequest(2))), 1))
    d.steps()
    [declined] = [message for message in d.said() if isinstance(message, Declined)]
    assert declined == Declined(1, "v1[0]: a later checkpoint overtook it")


@pytest.mark.parametrize("message", [Trigger(CutRequest(1)), Abort(1), Complete(1)], ids=lambda m: type(m).__name__)
def test_without_checkpoints_or_before_it_has_its_part_a_worker_passes_over_them(message: Any) -> None:
    joined = Driven(simple)
    joined.machine.handle(CoordinatorSaid(Welcome(1)))
    running = Driven(simple).start()
    for d in (joined, running):
        d.machine.handle(CoordinatorSaid(message))
        d.steps() if d.machine.stepping else None
        assert not any(isinstance(action, WriteState) for action in d.actions())


def test_state_that_cannot_be_encoded_is_a_fault_of_the_program() -> None:
    class Keeps(tr.KeyedProcessFunction):
        it = tr.ValueState(object)

        def process(self, value: Any, ctx: tr.Context) -> None:
            self.it.value = lambda: value

    def program(env: tr.Environment) -> None:
        env.from_collection([1]).key_by(abs).process(Keeps(), name="keeps").sink_to(tr.sinks.Callback(lambda r: None))

    d = Driven(program, checkpointing=True).start()
    d.steps()
    d.actions()
    d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    d.steps()
    [failed] = [action.message for action in encoded(d) if isinstance(action, ToCoordinator)]
    assert (failed.kind, failed.operator) == ("program", "keeps")
    assert not d.machine.encoding


# Starting anew in the same process.


def in_phase(phase: str) -> Driven:
    d = Driven(counted, checkpointing=True)
    d.machine.handle(CoordinatorSaid(Welcome(1)))
    if phase == "joined":
        return d
    d.machine.handle(CoordinatorSaid(Deploy(b"", d.peers)))
    if phase == "deployed":
        return d
    d.machine.handle(PeersConnected())
    d.machine.handle(CoordinatorSaid(Start()))
    if phase == "failed":
        d.machine.handle(DriverFailed(internal(ValueError("broken"))))
    if phase == "finished":
        d.steps()
    if phase == "writing":
        d.machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
        d.machine.handle(Step(d.machine.tasks()[-1].id.vertex, 0, 100))
    return d


@pytest.mark.parametrize("phase", ["joined", "deployed", "running", "failed", "finished", "writing"])
def test_a_worker_may_have_to_start_anew_at_any_time(phase: str) -> None:
    d = in_phase(phase)
    d.actions()
    d.machine.handle(CoordinatorSaid(Reset(1)))
    dropped = [DropState(1, "1/chk-1/w0-1.state")] if phase == "writing" else []
    assert d.actions() == [*dropped, ClosePeers(), ToCoordinator(WasReset(1))]
    assert (d.machine.phase, d.machine.failed, d.machine.stepping) == (Phase.JOINED, False, False)
    assert d.machine.tasks() == [] and d.machine.incarnation == 0
    # Whatever was under way for the attempt before falls on deaf ears.
    d.machine.handle(PeersConnected())
    d.machine.handle(StateWritten(1, 0))
    d.machine.handle(StateNotWritten(1, "late"))
    d.machine.handle(FrameArrived(b"nonsense", 1))
    d.machine.handle(PeerLost(1, "closed"))
    d.machine.handle(ReportDue({}, 0, {}))
    for message in (Trigger(CutRequest(1)), Complete(1), Abort(1)):
        d.machine.handle(CoordinatorSaid(message))
    assert d.actions() == []
    d.machine.handle(CoordinatorSaid(Deploy(b"", d.peers, 2, 1)))
    assert d.machine.incarnation == 2
    d.machine.handle(PeersConnected())
    d.machine.handle(CoordinatorSaid(Start()))
    d.steps()
    assert [type(message) for message in d.said()] == [Deployed, SubtasksFinished]


def test_a_worker_that_has_left_does_not_start_anew() -> None:
    d = Driven(simple).start()
    d.machine.handle(CoordinatorSaid(Leave("the job was cancelled")))
    d.actions()
    d.machine.handle(CoordinatorSaid(Reset(1)))
    assert d.actions() == [] and d.machine.phase is Phase.LEFT


def test_a_reset_closes_functions_and_the_next_attempt_opens_its_own() -> None:
    opened: list[tuple[int, int]] = []

    class Opening(tr.MapFunction):
        def open(self, ctx: Any) -> None:
            opened.append((ctx.attempt, ctx.incarnation))

        def map(self, value: Any) -> Any:
            return value

        def close(self) -> None:
            opened.append((-1, -1))

    def program(env: tr.Environment) -> None:
        env.from_collection([1]).map(Opening()).sink_to(tr.sinks.Callback(lambda record: None))

    d = Driven(program).start()
    d.machine.handle(CoordinatorSaid(Reset(1)))
    d.machine.handle(CoordinatorSaid(Deploy(b"", d.peers, 2, 1)))
    assert opened == [(0, 1), (-1, -1), (1, 2)]


def test_frames_of_the_attempt_before_are_dropped_after_the_next_deployment() -> None:
    d = Driven(shuffled, parallelism=2).start()
    d.machine.handle(CoordinatorSaid(Reset(1)))
    d.machine.handle(CoordinatorSaid(Deploy(b"", d.peers, 2, 1)))
    d.actions()
    d.machine.handle(FrameArrived(encode_batch(ChannelId(0, 1, 0), 1, 0, 0, Rows([1])), 1))
    assert d.machine.slice is not None and d.machine.slice.stale_frames == 1
    d.machine.handle(FrameArrived(encode_batch(ChannelId(0, 1, 0), 2, 1, 0, Rows([1])), 1))
    assert d.actions() == [] and d.machine.slice.tasks[0].gate.has_input


def test_leaving_drops_what_is_being_written() -> None:
    d = in_phase("writing")
    d.actions()
    d.machine.handle(CoordinatorSaid(Leave("the job was cancelled")))
    assert d.actions() == [DropState(1, "1/chk-1/w0-1.state"), Exit("the job was cancelled")]


# Publishing, and messages between subtasks.


class Shelf(tr.Sink):
    """A sink that notes its calls."""

    form = "rows"

    def __init__(self, calls: list[Any], broken: bool = False) -> None:
        self.told, self.broken = calls, broken

    def writer(self, ctx: Any) -> Any:
        return tr.sinks.Callback(lambda record: None).writer(ctx)

    def publish(self, prepared: Any) -> None:
        self.told.append(("publish", prepared))
        if self.broken:
            raise PermissionError("no entry")

    def recover(self, *args: Any) -> None:
        self.told.append(("recover", *args))
        if self.broken:
            raise PermissionError("no way")


TOLD: list[Any] = []


def test_what_was_restored_is_published_and_what_is_left_of_others_removed() -> None:
    TOLD.clear()

    def program(env: tr.Environment) -> None:
        env.from_collection([1]).sink_to(Shelf(TOLD), uid="shelf", name="shelf")

    d = Driven(program)
    d.spec = replace(d.spec, allow_dropped_state=("gone",))
    d.load = lambda data: d.spec  # type: ignore[method-assign]
    d.deploy()
    d.machine.handle(CoordinatorSaid(Publish([("shelf", [b"a"]), ("gone", [b"b"])], 7, ["before", "run"])))
    assert [message for message in d.said() if isinstance(message, Published)] == [Published(7, skipped=True)]
    calls = d.machine.spec.plan.graph.nodes[-1].operator.sink.told  # type: ignore[union-attr]
    assert calls == [("publish", [b"a"]), ("recover", ["before", "run"], 1, "shelf")]


def test_what_no_sink_of_the_dataflow_can_publish_is_an_error_and_not_passed_over() -> None:
    """What is to be published belongs to a sink that is not here, and the user has not given its output up: to pass
    over it would lose it without an error."""
    TOLD.clear()

    def program(env: tr.Environment) -> None:
        env.from_collection([1]).sink_to(Shelf(TOLD), uid="shelf", name="shelf")

    d = Driven(program).deploy()
    d.machine.handle(CoordinatorSaid(Publish([("gone", [b"b"])], 7)))
    [failed] = [message for message in d.said() if isinstance(message, Failed | Published)]
    assert isinstance(failed, Failed) and failed.kind == "state"
    assert "the sink with uid 'gone' prepared output" in failed.message


@pytest.mark.parametrize(
    ("one_", "what"),
    [
        (Publish([("shelf", [b"a"])]), "publishing raised PermissionError: no entry"),
        (Publish([], 0, ["run"]), "removing what was not published raised PermissionError: no way"),
    ],
    ids=["publish", "recover"],
)
def test_a_sink_that_cannot_publish_or_recover_is_named(one_: Publish, what: str) -> None:
    def program(env: tr.Environment) -> None:
        env.from_collection([1]).sink_to(Shelf([], broken=True), uid="shelf", name="shelf")

    d = Driven(program).deploy()
    d.machine.handle(CoordinatorSaid(one_))
    [failed] = [message for message in d.said() if isinstance(message, Failed)]
    assert (failed.kind, failed.operator) == ("user", "shelf") and what in failed.message


def test_an_operator_event_for_a_vertex_that_is_not_here_is_reported() -> None:
    d = Driven(simple).start()
    d.machine.handle(CoordinatorSaid(OperatorEvent(7, 1, 0, b"x")))
    [failed] = d.said()
    assert failed.kind == "internal" and "vertex 7, which is not in this worker" in failed.message


def test_what_is_too_large_to_be_said_is_reported_as_a_failure() -> None:
    d = Driven(simple).start()
    d.machine.handle(MessageTooLarge("OperatorEvent", "a message has at most 64 MiB"))
    [failed] = d.said()
    assert failed.message == "worker 0 cannot send OperatorEvent: a message has at most 64 MiB"


def test_what_sinks_prepared_without_checkpoints_is_reported_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.task.worker.publishing.LARGEST_PREPARED", 3)
    prepared = [("a", b"12"), ("a", b"3"), ("b", b"4"), ("b", b"56789")]
    assert in_parts(prepared) == [prepared[:2], prepared[2:3], prepared[3:]]
    assert in_parts([]) == [[]]
