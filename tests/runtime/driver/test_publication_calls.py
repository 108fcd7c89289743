"""The driver calls `published` of sinks after a publication, and nothing waits for these calls."""

from __future__ import annotations

import logging
import threading

import pytest

from tailrace.runtime.driver.publication_calls import Announcer


class Told:
    """A sink that takes as long as the test sets."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        self.begun.release()
        assert self.go_on.acquire(timeout=20)


def test_nothing_waits_for_a_sink_and_no_news_are_lost() -> None:
    found = Told()
    announcer = Announcer("job", [("table", found)])
    announcer.announce()
    assert found.begun.acquire(timeout=20)
    for _ in range(3):
        announcer.announce()  # comes back although the sink does not
    assert found.times == 1
    found.go_on.release(2)
    announcer.close(20)
    assert found.times == 2  # once more, for all three


def test_sinks_do_not_wait_for_each_other() -> None:
    slow, quick = Told(), Told()
    quick.go_on.release()
    announcer = Announcer("job", [("slow", slow), ("quick", quick)])
    announcer.announce()
    assert quick.begun.acquire(timeout=20)
    slow.go_on.release()
    announcer.close(20)


def test_a_sink_that_raises_is_reported_again_and_named(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def raises() -> None:
        calls.append(1)
        raise ValueError("no catalogue")

    announcer = Announcer("a job", [("table", raises)])
    announcer.announce()
    announcer.close(20)
    assert calls == [1]
    assert "job 'a job': published() of sink 'table' raised in the driver" in caplog.text
    assert "ValueError: no catalogue" in caplog.text


def test_a_sink_that_does_not_come_back_is_left_and_named(caplog: pytest.LogCaptureFixture) -> None:
    found = Told()
    announcer = Announcer("a job", [("table", found)])
    announcer.announce()
    assert found.begun.acquire(timeout=20)
    with caplog.at_level(logging.WARNING):
        announcer.close(0.01)
    assert "published() of sink 'table' has not returned; the job ends without it" in caplog.text
    found.go_on.release()
