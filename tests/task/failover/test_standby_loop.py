"""A worker that stands by: which slices it holds."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tailrace as tr
from tailrace.protocol.deployment import Welcome
from tailrace.protocol.standby import Hold, StandBy, StateHeld
from tailrace.state.manifest import Manifest, encode_manifest
from tailrace.state.memory import MemoryBackend
from tailrace.task.contract.actions import ReadState, ToCoordinator
from tailrace.task.contract.events import CoordinatorSaid, StatePartRead, StateRead
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.worker.machine import Worker


class Backend(MemoryBackend):
    """Knows whether it was closed."""

    open = True

    def close(self) -> None:
        self.open = False


class Standby:
    """The place behind two slots, and what a storage would do for it."""

    def __init__(self) -> None:
        env = tr.Environment(parallelism=2, max_parallelism=4)
        numbers = env.from_source(tr.sources.Sequence(0, 10))
        numbers.key_by(lambda n: n % 4).count().sink_to(tr.sinks.Callback(print))
        spec = JobSpec("job", 1, env._plan(env._pending()), env.memory, "run", checkpointing=True)
        self.backends: dict[int, Backend] = {}

        def make(spec: JobSpec, uid: str, subtask: int) -> Backend:
            self.backends[subtask] = Backend(uid=uid, subtask=subtask, max_parallelism=4)
            return self.backends[subtask]

        self.machine = Worker(2, lambda plan: spec, random.Random, make)
        self.says(Welcome(1))
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
