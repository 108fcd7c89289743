"""A worker that stands by: which slices it holds."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest

import tailrace as tr
from tailrace.protocol.deployment import Deploy, Leave, Peer, Start, Welcome
from tailrace.protocol.recovery import Reset
from tailrace.protocol.standby import Hold, StandBy, StandsBy, StateHeld, TakeSlot
from tailrace.state.format import TableInfo
from tailrace.state.manifest import Manifest, OperatorRecord, StateFile, decode_manifest, encode_manifest
from tailrace.state.memory_backend import MemoryBackend
from tailrace.state.parts import BlockOf, MetaOf
from tailrace.task.contract.actions import ReadState, ToCoordinator
from tailrace.task.contract.events import CoordinatorSaid, PeersConnected, StatePartRead, StateRead
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.failover import standby
from tailrace.task.failover.standby_mirrors import FILES, REST_BYTES
from tailrace.task.worker.machine import Worker


class Backend(MemoryBackend):
    """Knows whether it was closed."""

    open = True

    def close(self) -> None:
        self.open = False


class Standby:
    """The place behind two slots, and what a storage would do for it."""

    def __init__(
        self, build: Callable[[Any], Any] = lambda stream: stream.count(), slot: int = 2, stands_by: bool = True
    ) -> None:

        def load(plan: bytes) -> JobSpec:
            env = tr.Environment(parallelism=2, max_parallelism=4)
            numbers = env.from_source(tr.sources.Sequence(0, 10))
            build(numbers.key_by(lambda n: n % 4)).sink_to(tr.sinks.Callback(print))
            return JobSpec("job", 1, env._plan(env._pending()), env.memory, "run", checkpointing=True)

        self.backends: dict[int, Backend] = {}

        def make(spec: JobSpec, uid: str, subtask: int) -> Backend:
            self.backends[subtask] = Backend(uid=uid, subtask=subtask, max_parallelism=4)
            return self.backends[subtask]

        self.machine = Worker(slot, load, random.Random, make)
        self.says(Welcome(1))
        if stands_by:
            self.says(StandBy(b"plan"))

    def says(self, message: Any) -> None:
        self.machine.handle(CoordinatorSaid(message))

    def hold(self, checkpoint: int, *slots: int) -> None:
        manifest = Manifest("job", "run", 1, checkpoint, 0, 4, 2, [])
        self.says(Hold(checkpoint, encode_manifest(manifest), list(slots)))

    def wanted(self, kind: Any) -> list[Any]:
        actions, self.machine.actions = self.machine.actions, []
        return [action for action in actions if isinstance(action, kind)]

    def read(self) -> None:
        """The storage has carried out all read requests."""
        while requested := self.wanted(ReadState):
            for one in requested:
                self.machine.handle(StateRead(one.number))
                self.held = [a.message for a in self.machine.actions if isinstance(a, ToCoordinator)]

    @property
    def open(self) -> list[int]:
        return [slot for slot, backend in self.backends.items() if backend.open]


def test_what_it_is_not_to_hold_any_more_it_drops() -> None:
    one = Standby()
    one.hold(1, 0, 1)
    one.read()
    assert one.held == [StateHeld(1, [0, 1])] and one.open == [0, 1]
    one.hold(2, 1)
    one.read()
    assert one.held == [StateHeld(2, [1])] and one.open == [1]
    one.hold(2)
    assert [a.message for a in one.wanted(ToCoordinator)] == [StateHeld(2, [])] and one.open == []


@pytest.mark.parametrize("answer", [StatePartRead, StateRead])
def test_an_answer_of_the_storage_for_what_it_has_dropped_is_for_nobody(answer: Any) -> None:
    one = Standby()
    one.hold(1, 0)
    [requested] = one.wanted(ReadState)
    one.hold(1, 1)
    [other] = one.wanted(ReadState)
    one.machine.handle(StateRead(requested.number) if answer is StateRead else StatePartRead(requested.number, None))  # type: ignore[arg-type]
    assert one.wanted(object) == [], "it is not held"
    one.machine.handle(StateRead(other.number))
    assert [a.message for a in one.wanted(ToCoordinator)] == [StateHeld(1, [1])] and one.open == [1]


class Prepared(tr.KeyedProcessFunction):
    """A function that notes what is done with each copy of it, and holds what cannot be copied."""

    calls: ClassVar[list[str]] = []
    seen = tr.ValueState(int, default=0)

    def prepare(self) -> None:
        self.lock = threading.Lock()
        self.calls.append("prepare")

    def open(self, ctx: tr.Context) -> None:
        assert self.lock
        self.calls.append("open")

    def process(self, value: int, ctx: tr.Context) -> list[int]:
        return [value]

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def with_a_function() -> Standby:
    Prepared.calls.clear()
    return Standby(lambda stream: stream.process(Prepared()))


def test_functions_are_prepared_when_it_gets_ready_and_opened_when_it_takes_a_slot(with_a_function: Standby) -> None:
    one = with_a_function
    assert Prepared.calls == ["prepare"]
    one.hold(1, 0, 1)
    one.read()
    assert one.held == [StateHeld(1, [0, 1])], "copies for the state are made of functions that are not prepared"
    one.says(TakeSlot(1))
    one.says(Welcome(2))
    assert Prepared.calls == ["prepare"]
    one.says(Deploy(b"plan", [], 1, 0))
    assert Prepared.calls == ["prepare", "open"]


def meta(uid: str, size: int) -> MetaOf:
    return MetaOf(uid, 0, 2, False, bytes(size))


@pytest.mark.parametrize(
    ("files", "size", "ahead"), [(2, 100, True), (FILES + 1, 100, False), (2, REST_BYTES // 2 + 1, False)]
)
def test_the_rest_of_a_checkpoint_is_held_if_it_is_small(files: int, size: int, ahead: bool) -> None:
    one = Standby()
    manifest = Manifest("job", "run", 1, 7, 0, 4, 2, [StateFile(slot, f"{slot}", 1) for slot in range(files)])
    one.says(Hold(7, encode_manifest(manifest), [0]))
    (read,) = one.wanted(ReadState)
    assert len(decode_manifest(read.manifest, "it").files) == (1 if files > FILES else files)
    parts = [meta("a", size), meta("b", size)]
    for part in parts:
        one.machine.handle(StatePartRead(read.number, part))
    one.machine.handle(StateRead(read.number))
    mirror = one.machine._standing._mirrors[0]
    assert mirror is not None and mirror.everything_of(manifest) == (parts if ahead else None)
    assert mirror.everything_of(msgspec.structs.replace(manifest, checkpoint=8)) is None
    assert mirror.everything_of(msgspec.structs.replace(manifest, incarnation=2)) is None


def test_half_of_the_rest_of_a_checkpoint_is_not_taken_for_all_of_it() -> None:
    one = Standby()
    manifest = Manifest("job", "run", 1, 7, 0, 4, 2, [StateFile(0, "0", 1)])
    one.says(Hold(7, encode_manifest(manifest), [0]))
    (read,) = one.wanted(ReadState)
    one.machine.handle(StatePartRead(read.number, meta("a", 10)))
    mirror = one.machine._standing._mirrors[0]
    one.says(TakeSlot(0))
    assert mirror is not None and mirror.everything_of(manifest) is None


def test_functions_that_were_prepared_in_vain_are_closed(with_a_function: Standby) -> None:
    with_a_function.says(Leave("the job is over"))
    assert Prepared.calls == ["prepare", "close"]


def test_a_worker_prepares_the_functions_of_its_own_slot_only() -> None:
    Prepared.calls.clear()
    for slot, calls in ((0, ["prepare", "open"]), (1, [])):
        one = Standby(lambda stream: stream.process(Prepared(), parallelism=1), slot, stands_by=False)
        one.says(Deploy(b"plan", [Peer(0, "host", 1, 1), Peer(1, "host", 2, 1)], 1, 0))
        assert Prepared.calls == calls
        Prepared.calls.clear()


# Another size.


class Running(Standby):
    """Worker 0 of a job that runs, and is to change its size."""

    def __init__(self, build: Callable[[Any], Any] = lambda stream: stream.count()) -> None:
        super().__init__(build, 0, stands_by=False)
        self.deploy(b"plan")

    def deploy(self, plan: bytes) -> None:
        self.says(Deploy(plan, [Peer(0, "host", 1, 1), Peer(1, "host", 2, 1)], 1, 0))
        self.machine.handle(PeersConnected())
        self.says(Start())
        self.wanted(object)

    @property
    def sent(self) -> list[Any]:
        return [action.message for action in self.wanted(ToCoordinator)]


def test_a_worker_that_runs_gets_ready_for_another_size_beside_its_tasks() -> None:
    Prepared.calls.clear()
    one = Running(lambda stream: stream.process(Prepared()))
    spec, attempt = one.machine.spec, one.machine.attempt
    one.says(StandBy(b"another"))
    assert one.sent == [StandsBy()] and Prepared.calls == ["prepare", "open"], "two of them may not fit one process"
    one.hold(1, 0)
    one.read()
    assert one.held == [StateHeld(1, [0])]
    assert (one.machine.spec, one.machine.attempt) == (spec, attempt) and one.machine.stepping
    one.says(Reset(1))
    assert Prepared.calls == ["prepare", "open", "close"]
    one.says(Deploy(b"another", [Peer(0, "host", 1, 1), Peer(1, "host", 2, 1)], 2, 1))
    assert Prepared.calls == ["prepare", "open", "close", "prepare", "open"]


def test_a_worker_that_joins_prepares_the_functions_of_its_own_slot_only() -> None:
    for slot, calls in ((0, ["prepare"]), (1, [])):
        Prepared.calls.clear()
        Standby(lambda stream: stream.process(Prepared(), parallelism=1), slot)
        assert Prepared.calls == calls


@pytest.mark.parametrize("end", ["the job begins anew", "the change has ended", "another size"])
def test_what_is_held_for_another_plan_is_dropped(end: str) -> None:
    one = Running()
    one.says(StandBy(b"another"))
    one.hold(1, 0)
    one.read()
    held = one.backends[0]
    if end == "the job begins anew":
        one.says(Reset(1))
        one.deploy(b"plan")
    elif end == "the change has ended":
        one.says(Hold(0, b"", []))
    else:
        one.says(StandBy(b"a third one"))
    assert not held.open and one.machine.stepping and one.machine._standing._mirrors == {}


def test_an_error_beside_tasks_is_no_failure_of_theirs() -> None:
    one = Running()
    one.says(StandBy(b"another"))
    one.hold(3, 0)
    (read,) = one.wanted(ReadState)
    one.machine.handle(StatePartRead(read.number, BlockOf("nobody", TableInfo("t"), 0, 1, memoryview(b""))))
    assert one.sent == [StateHeld(3, [])] and not one.machine.failed and one.machine.stepping


def test_beside_tasks_a_slice_is_held_in_memory_only_if_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "AHEAD_BYTES", -1)
    one = Running()
    one.says(StandBy(b"another"))
    one.hold(3, 0)
    (read,) = one.wanted(ReadState)
    one.machine.handle(StatePartRead(read.number, meta("a", 10)))
    actions = one.wanted(object)
    assert actions[1:] == [ToCoordinator(StateHeld(3, []))]
    assert actions[0].required == {}, "the reading that is under way ends with it"
    one.machine.handle(StatePartRead(read.number, meta("a", 10)))
    one.machine.handle(StateRead(actions[0].number))
    assert one.wanted(object) == []


def test_in_another_size_the_state_of_a_slice_is_in_the_files_of_all_workers() -> None:
    one = Running()
    one.says(StandBy(b"another"))
    (uid,) = {node.uid for node in one.machine.spec.plan.graph.nodes if "count" in node.name}  # type: ignore[union-attr]
    files = [StateFile(slot, f"{slot}", 1) for slot in range(FILES + 1)]
    manifest = Manifest("job", "run", 1, 7, 0, 4, 2, files, operators=[OperatorRecord(uid, "count", 3)])
    one.says(Hold(7, encode_manifest(manifest), [0]))
    (read,) = one.wanted(ReadState)
    assert len(decode_manifest(read.manifest, "it").files) == FILES + 1
