"""Workers whose machine is about to go: a checkpoint first, if there is time for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.runtime.driver import moving
from tailrace.runtime.driver.moving import CHECKPOINT_SECONDS, Moving


class Machine:
    """A coordinator that notes its calls."""

    movable = True
    status = JobStatus.RUNNING

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.moved: list[set[tuple[int, int]]] = []

    def checkpoint(self, who: Any, now: int) -> None:
        self.asked.append(who)

    def move(self, launches: Any, now: int) -> None:
        self.moved.append(set(launches))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(now=100.0)
    monkeypatch.setattr(moving, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


@pytest.fixture
def machine() -> Any:
    return Machine()


@pytest.mark.parametrize("taken", [True, False])
def test_workers_move_once_a_checkpoint_is_there_or_will_not_be(machine: Any, clock: Any, taken: bool) -> None:
    moves = Moving(machine, lambda: None)
    assert moves.wait() is None
    moves.leaving([(0, 1)])
    moves.leaving([(0, 1), (2, 1)])  # reported again, with another one
    moves.turn()
    assert len(machine.asked) == 1 and not machine.moved and moves.wait() == CHECKPOINT_SECONDS
    if taken:
        machine.asked[0].set_result(None)
    else:
        machine.asked[0].set_exception(RuntimeError("declined"))
    assert moves.wait() == 0.0
    moves.turn()
    assert machine.moved == [{(0, 1), (2, 1)}] and moves.wait() is None


def test_machines_do_not_wait_long_for_a_checkpoint(machine: Any, clock: Any) -> None:
    moves = Moving(machine, lambda: None)
    moves.leaving([(0, 1)])
    clock.now += CHECKPOINT_SECONDS
    moves.turn()
    assert machine.moved == [{(0, 1)}]
    moves.leaving([(1, 1)])
    machine.asked[0].set_result(None)  # that of the move before, which has nothing of what came since
    moves.turn()
    assert len(machine.moved) == 1 and moves.wait() == CHECKPOINT_SECONDS
    machine.asked[1].set_result(None)
    moves.turn()
    assert machine.moved[1:] == [{(1, 1)}]


def test_nothing_is_asked_of_a_job_that_cannot_move(machine: Any, clock: Any) -> None:
    moves = Moving(machine, lambda: None)
    machine.status = JobStatus.RESTARTING
    moves.leaving([(0, 1)])
    machine.status, machine.movable = JobStatus.RUNNING, False
    moves.leaving([(0, 1)])
    assert not machine.asked and moves.wait() is None
