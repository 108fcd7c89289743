"""Credits: the consumer grants bytes, the producer never sends more, and neither ever waits for nothing."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolViolation
from tailrace.protocol.credit import Consumer, Producer

WINDOW = 1000


class Channel:
    """Both halves, and a network between them that keeps order and may lag."""

    def __init__(self, window: int) -> None:
        self.producer, self.consumer = Producer(window), Consumer(window)
        self.frames: deque[int] = deque()
        self.unread: deque[int] = deque()
        self.grants: deque[int] = deque()

    @property
    def in_flight(self) -> int:
        return sum(self.frames) + sum(self.unread)

    def send(self, size: int) -> bool:
        if not self.producer.may_send(size):
            return False
        self.producer.send(size)
        self.frames.append(size)
        return True

    def deliver(self) -> None:
        size = self.frames.popleft()
        self.consumer.arrive(size)
        self.unread.append(size)

    def read(self) -> None:
        grant = self.consumer.consume(self.unread.popleft())
        if grant is not None:
            self.grants.append(grant)

    def grant(self) -> None:
        self.producer.grant(self.grants.popleft())


sizes = st.integers(1, 2 * WINDOW)
windows = st.integers(1, WINDOW)


@given(st.data(), windows)
def test_no_more_than_the_window_or_half_of_it_and_one_frame_is_in_flight(data: st.DataObject, window: int) -> None:
    channel = Channel(window)
    for _ in range(data.draw(st.integers(0, 60))):
        size = data.draw(sizes)
        if channel.send(size):
            assert channel.in_flight <= max(window, window // 2 + size)
        for act in data.draw(st.permutations(["deliver", "read", "grant"])):
            queue = {"deliver": channel.frames, "read": channel.unread, "grant": channel.grants}[act]
            if queue and data.draw(st.booleans()):
                getattr(channel, act)()


@given(st.lists(st.integers(1, WINDOW), min_size=1, max_size=40), windows)
def test_frames_that_fit_never_exceed_the_window(frames: list[int], window: int) -> None:
    channel = Channel(window)
    for size in frames:
        size = min(size, window - window // 2)
        if channel.send(size):
            assert channel.in_flight <= window


@given(st.lists(sizes, max_size=40), windows)
def test_nothing_ever_waits_for_a_grant_that_nobody_will_say(frames: list[int], window: int) -> None:
    channel = Channel(window)
    for size in frames:
        while not channel.send(size):
            # The producer waits. Everything that is on its way arrives, is read, and each grant that is due is sent:
            # then the frame must go.
            assert channel.frames or channel.unread or channel.grants, f"{size} waits for nothing"
            if channel.frames:
                channel.deliver()
            elif channel.unread:
                channel.read()
            else:
                channel.grant()


def test_a_frame_larger_than_the_window_travels_alone() -> None:
    channel = Channel(WINDOW)
    assert channel.send(5 * WINDOW)
    assert not channel.send(1)
    channel.deliver()
    channel.read()
    channel.grant()
    assert channel.send(5 * WINDOW)


def test_a_large_frame_waits_while_half_of_the_window_is_taken() -> None:
    channel = Channel(WINDOW)
    assert channel.send(WINDOW // 2)
    assert not channel.send(WINDOW // 2 + 1)
    assert channel.send(WINDOW // 2)


def test_grants_are_sent_by_half_windows_and_not_after_each_frame() -> None:
    channel = Channel(WINDOW)
    message = 0
    for _ in range(1000):
        assert channel.send(10)
        channel.deliver()
        channel.read()
        while channel.grants:
            channel.grant()
            message += 1
    assert message == 1000 * 10 // (WINDOW // 2)


def test_a_grant_that_comes_late_or_twice_does_no_harm() -> None:
    producer = Producer(WINDOW)
    for total in (3 * WINDOW, 2 * WINDOW, 3 * WINDOW):
        producer.grant(total)
    assert producer.allowed == 3 * WINDOW


def test_who_sends_more_than_was_granted_is_told() -> None:
    consumer = Consumer(WINDOW)
    consumer.arrive(WINDOW)
    with pytest.raises(ProtocolViolation, match="1 bytes arrived where 0 were granted and 1000 are unread"):
        consumer.arrive(1)
