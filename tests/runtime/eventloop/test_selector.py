"""The event loop of a process."""

from __future__ import annotations

import time

from tailrace.runtime.eventloop.selector import EventLoop


def test_a_wait_of_less_than_a_millisecond_is_one() -> None:
    """epoll waits for whole ones, rounded up: a source was woken a millisecond too late, on average half of one."""
    loop = EventLoop()
    took = []
    for _ in range(20):
        begun = time.perf_counter()
        assert loop.poll(0.0002) == 0
        took.append(time.perf_counter() - begun)
    loop.close()
    assert 0.0001 < min(took) < 0.0009


def test_a_wait_ends_when_something_is_there() -> None:
    loop = EventLoop()
    done: list[int] = []
    loop.call_soon_threadsafe(lambda: done.append(1))
    loop.wake()
    begun = time.perf_counter()
    while not done or time.perf_counter() - begun > 20:
        loop.poll(20.0)
    loop.wake()
    loop.poll(20.0)
    loop.close()
    assert time.perf_counter() - begun < 10
