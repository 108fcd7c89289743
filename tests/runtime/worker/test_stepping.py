"""How a busy worker shares its time between steps and the encoding of a snapshot, and the pace of a hot standby."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.runtime.worker import stepping
from tailrace.runtime.worker.stepping import ENCODE_SHARE, PORTIONS, Stepper
from tailrace.task.contract.events import Encode, Event, Flush, Step
from tailrace.task.worker.attempt import Urgency

MILLISECOND = 1_000_000


class BusyWorker:
    """A machine that always has a step to do. Each step and each portion of encoding takes a millisecond."""

    urgency = Urgency.USUAL
    stepping = True
    follows = False

    def __init__(self) -> None:
        self.now = 0
        self.encoding = False
        self.did: list[type[Event]] = []
        cuts, work = SimpleNamespace(made=0), SimpleNamespace(last_count=1, advancing=False)
        chain, ident = SimpleNamespace(source=None), SimpleNamespace(vertex=0)
        self.task = SimpleNamespace(cuts=cuts, work=work, chain=chain, id=ident)

    def awake(self, now: int) -> list[Any]:
        return [self.task]

    def handle(self, event: Event) -> None:
        assert isinstance(event, Step | Encode)
        self.now += MILLISECOND
        self.did.append(type(event))


def test_work_done_before_a_cut_is_no_credit_for_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of steps goes by before the cut. From there on encoding has its share of any stretch of time, and not
    first all that it would have had of that second."""
    worker: Any = BusyWorker()
    monkeypatch.setattr(stepping, "time", SimpleNamespace(perf_counter_ns=lambda: worker.now, time=lambda: 0.0))
    stepper = Stepper(worker)
    for _ in range(1000):
        stepper.step()
    worker.encoding, worker.did = True, []
    while len(worker.did) < 200:
        stepper.encode(stepper.step())
    for start in range(150):
        stretch = worker.did[start : start + 50]
        assert stretch.count(Encode) <= 50 * ENCODE_SHARE + PORTIONS
    assert worker.did.count(Encode) >= 200 * ENCODE_SHARE - PORTIONS


def test_the_last_checkpoint_of_a_job_is_not_held_to_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tasks still have work in front of the cut, each of their steps has several portions beside it."""
    worker: Any = BusyWorker()
    monkeypatch.setattr(stepping, "time", SimpleNamespace(perf_counter_ns=lambda: worker.now, time=lambda: 0.0))
    stepper = Stepper(worker)
    worker.encoding, worker.urgency = True, Urgency.LAST
    while len(worker.did) < 200:
        stepper.encode(stepper.step())
    assert worker.did.count(Encode) >= 200 * PORTIONS / (PORTIONS + 1) - PORTIONS


def test_steps_have_a_fifth_of_the_time_left_while_a_user_waits_for_state(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = BusyWorker()
    monkeypatch.setattr(stepping, "time", SimpleNamespace(perf_counter_ns=lambda: worker.now, time=lambda: 0.0))
    stepper = Stepper(worker)
    worker.encoding, worker.urgency = True, Urgency.IN_FLIGHT
    while len(worker.did) < 200:
        stepper.encode(stepper.step())
    share = stepping.IN_FLIGHT_SHARE
    assert 200 * share - PORTIONS <= worker.did.count(Encode) <= 200 * share + PORTIONS


class FiringWorker(BusyWorker):
    """A machine whose task fires timers. A portion takes a third of a millisecond, whatever its size."""

    def __init__(self) -> None:
        super().__init__()
        self.task.work.last_count, self.task.work.advancing = 0, True
        self.sizes: list[int] = []

    def handle(self, event: Event) -> None:
        assert isinstance(event, Step)
        self.now += MILLISECOND // 3
        self.sizes.append(event.budget)


def test_portions_of_timers_grow_where_they_take_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a task that had read few records in a step, while others had the machine, fires a million timers one by one."""
    worker: Any = FiringWorker()
    monkeypatch.setattr(stepping, "time", SimpleNamespace(perf_counter_ns=lambda: worker.now, time=lambda: 0.0))
    stepper = Stepper(worker)
    for _ in range(100):
        stepper.step()
    assert worker.sizes[0] == stepping.FIRST_BUDGET
    assert worker.sizes[-1] > 10_000


class Follower:
    """A hot standby that replays a portion in a millisecond, as long as something is left."""

    follows, pace = True, 50_000

    def __init__(self) -> None:
        self.now, self.left = 1_000_000_000, 0
        self.answered: list[int] = []
        """When it answered, in milliseconds."""

    def handle(self, event: Event) -> bool:
        assert isinstance(event, Flush)
        moved, self.left = self.left > 0, max(0, self.left - 1)
        self.now += MILLISECOND * moved
        if event.answers and not moved:
            self.answered.append(self.now // MILLISECOND - 1000)
        return moved


def test_a_hot_standby_replays_at_once_and_answers_at_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come at 0 is answered when all of it is replayed, at 3; what has come at 10 is replayed then, and answered
    at 53: until then the worker gathers what it sends next."""
    follower: Any = Follower()
    monkeypatch.setattr(stepping, "time", SimpleNamespace(perf_counter_ns=lambda: follower.now, time=lambda: 0.0))
    stepper, sleeps = Stepper(follower), list[float | None]()

    def goes_on() -> None:
        while (wake := stepper.step()) == 0.0:
            pass
        sleeps.append(wake)

    follower.left = 3
    goes_on()
    follower.now, follower.left = 1_010_000_000, 2
    goes_on()
    follower.now = 1_053_000_000
    goes_on()
    assert follower.answered == [3, 53]
    assert sleeps == [None, pytest.approx(0.041), None]
