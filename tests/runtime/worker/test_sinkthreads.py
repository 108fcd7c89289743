"""The threads in which sinks publish: one for each sink, in order, beside the loop of the worker."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.worker import sinkthreads
from tailrace.runtime.worker.sinkthreads import SinkThreads
from tailrace.task.contract.actions import CallSink
from tailrace.task.contract.events import SinkAnswered


class Gated:
    """A sink whose calls wait until the test opens its gate."""

    def __init__(self) -> None:
        self.gate, self.begun = threading.Event(), threading.Event()
        self.calls: list[str] = []
        self.at_once = self.most = 0

    def publish(self, prepared: list[bytes]) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.begun.set()
        assert self.gate.wait(30)
        self.calls.append(prepared[0].decode())
        self.at_once -= 1

    def settled(self, prepared: list[bytes]) -> None:
        raise ConnectionError("no route")

    def close(self) -> None:
        pass


class Loop:
    """A loop, its threads, and the answers that have come."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.threads = SinkThreads(self.loop)
        self.answers: list[SinkAnswered] = []
        self.threads.on_answer = self.answers.append
        self._number = 0

    def call(self, sink: Any, uid: str, data: str, method: str = "publish", name: str = "") -> None:
        self._number += 1
        self.threads.call(CallSink(self._number, uid, method, ([data.encode()],), sink, name))

    def until(self, count: int) -> None:
        while len(self.answers) < count:
            assert self.loop.poll(30) or self.answers


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Loop()
    monkeypatch.setattr("tailrace.runtime.eventloop.storage_thread.STUCK_SECONDS", 0.05)
    yield made
    made.threads.end()
    made.loop.close()


def test_a_sink_that_hangs_holds_neither_the_loop_nor_another_sink_back(one: Loop) -> None:
    slow, fast = Gated(), Gated()
    fast.gate.set()
    for number in range(3):
        one.call(slow, "slow", str(number))
        one.call(fast, "fast", str(number))
    one.until(3)
    assert fast.calls == ["0", "1", "2"] and slow.calls == []
    slow.gate.set()
    one.until(6)
    assert slow.calls == ["0", "1", "2"] and slow.most == 1, "in order, and one at a time"
    assert sorted(answer.number for answer in one.answers) == [1, 2, 3, 4, 5, 6]


def test_a_call_of_the_attempt_before_holds_those_of_the_next_one_back(one: Loop) -> None:
    """Each attempt has a sink object of its own: it is the uid that counts."""
    before, after = Gated(), Gated()
    after.gate.set()
    one.call(before, "sink", "0")
    one.call(after, "sink", "0")
    one.loop.poll(0.05)
    assert after.calls == []
    before.gate.set()
    one.until(2)
    assert before.calls == after.calls == ["0"]


def test_what_is_left_is_done_at_the_end_and_a_call_that_hangs_ends_the_process(
    one: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(sinkthreads.os, "kill", lambda *args: killed.append(args))
    quick, stuck = Gated(), Gated()
    quick.gate.set()
    one.call(quick, "quick", "0")
    one.threads.end()
    one.threads.end_process()
    assert quick.calls == ["0"] and killed == []
    one.call(stuck, "stuck", "0")
    assert stuck.begun.wait(30)
    one.threads.end()
    one.threads.end_process()
    assert killed == [(os.getpid(), signal.SIGKILL)]
    stuck.gate.set()


def test_an_error_of_settled_is_a_warning_with_the_name_of_the_sink(
    one: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("wire", "wire", "archive"):
        one.call(Gated(), "sink", "0", "settled", name)
    one.until(3)
    assert one.answers[0].error == "ConnectionError: no route"
    wire, archive = (record.getMessage() for record in caplog.records)  # a warning that repeats is held back
    assert wire.startswith("sink 'wire': settled() raised ConnectionError: no route\n") and "in settled" in wire
    assert archive.startswith("sink 'archive': ")
