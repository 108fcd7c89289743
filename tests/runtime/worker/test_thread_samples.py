"""A close look at workers: when it ends, and what comes together in it."""

from __future__ import annotations

from tailrace.coordinator.workers.roster import Roster
from tailrace.protocol.deployment import Hello, Inspect, Inspection, KeyTime, ThreadStack
from tailrace.runtime.driver import inspecting
from tailrace.runtime.driver.inspecting import SILENT, Inspections
from tailrace.runtime.driver.user_requests import WishFuture


def joined(*pids: int) -> Roster:
    roster = Roster(len(pids))
    for slot, pid in enumerate(pids):
        roster.admit(Hello(slot, "h", 1, pid, "job", 1), 0)
    return roster


def test_a_look_ends_when_all_have_answered_and_without_those_that_hold_the_interpreter() -> None:
    sent: list[Inspect] = []
    looks = Inspections(joined(11, 12), sent.append)
    first, second = WishFuture(), WishFuture()
    looks.begin(2.0, first)
    looks.begin(0.0, second)
    [one, two] = sent
    assert (one.seconds, two.seconds, one.number != two.number) == (2.0, 0.0, True)
    stack = [ThreadStack("worker", "  File x", "scores")]
    keys = [KeyTime("scores", "'a'", 3), KeyTime("scores", "'b'", 1)]
    looks.receive(Inspection(one.number, 0, 11, stack, keys, {"scores": 4}))
    looks.receive(Inspection(one.number, 1, 99, stack))  # a process that was lost meanwhile
    looks.receive(Inspection(77, 1, 12, stack))
    looks.receive(Inspection(one.number, 0, 11, stack, keys, {"scores": 4}))  # once more, and not counted
    assert not first.done() and looks.open() == [one, two]
    looks.receive(Inspection(one.number, 1, 12, [], [KeyTime("scores", "'b'", 4)], {"scores": 4}))
    assert first.result(0)["keys"] == {"scores": [{"key": "'b'", "share": 0.625}, {"key": "'a'", "share": 0.375}]}
    assert looks.next_deadline is not None
    looks.expire(looks.next_deadline - 0.1)
    assert not second.done()
    looks.expire(looks.next_deadline)
    assert [one["problem"] for one in second.result(0)["workers"]] == [SILENT, SILENT] and looks.next_deadline is None


def test_a_job_without_workers_answers_at_once() -> None:
    looks, future = Inspections(Roster(2), lambda request: None), WishFuture()
    looks.begin(0.0, future)
    assert future.result(0) == {"workers": [], "keys": {}} and inspecting.PATIENCE > 0
