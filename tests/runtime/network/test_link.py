"""Links over real loopback sockets, and over a socket that dribbles."""

import hashlib
import os
import random
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.network import link as link_module
from tailrace.runtime.network.link import (
    CONTROL,
    FRAME,
    LIMITS,
    READ_BYTES,
    WRITE_BYTES,
    Link,
    LinkBroken,
    LinkClosed,
    endpoint,
)

MIB = 1 << 20
Message = tuple[int, bytes]


@pytest.fixture(autouse=True)
def no_fd_leaks() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


@pytest.fixture
def raw(no_fd_leaks: None) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connected pair of TCP sockets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def pair(raw: tuple[socket.socket, socket.socket]) -> Iterator[tuple[Link, Link]]:
    left, right = Link(raw[0], "left's peer"), Link(raw[1], "right's peer")
    yield left, right
    left.close()
    right.close()


def run(loop: EventLoop, until: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        left = deadline - time.monotonic()
        assert left > 0, "this takes too long"
        loop.poll(left)


def collect(loop: EventLoop, link: Link) -> list[Message]:
    """A list that fills with the messages that arrive while the loop runs."""
    messages: list[Message] = []
    loop.register(link, selectors.EVENT_READ, lambda mask: messages.extend(link.readable()))
    return messages


def drain(loop: EventLoop, link: Link) -> None:
    """Let the loop flush the link for as long as it has something to send."""

    def writable(mask: int) -> None:
        if link.flush():
            loop.unregister(link)

    if not link.flush():
        loop.register(link, selectors.EVENT_WRITE, writable)


def wire(*messages: Message) -> bytes:
    return b"".join(struct.pack("<IB", len(payload), kind) + payload for kind, payload in messages)


# messages


def test_messages_arrive_in_order_and_are_counted(loop: EventLoop, pair: tuple[Link, Link]) -> None:
    left, right = pair
    got = collect(loop, right)
    left.send(CONTROL, b"hello")
    left.send(FRAME)
    left.send(FRAME, b"", bytearray(b"a"), memoryview(b"bc"), b"x" * 5000)
    sent = [(CONTROL, b"hello"), (FRAME, b""), (FRAME, b"abc" + b"x" * 5000)]
    assert left.needs_write
    assert left.queued_bytes == len(wire(*sent))
    assert (left.bytes_out, right.bytes_in) == (0, 0)
    assert left.flush()
    assert not left.needs_write
    assert left.queued_bytes == 0
    run(loop, lambda: len(got) == 3)
    assert got == sent
    assert all(type(payload) is bytes for _, payload in got)
    assert left.bytes_out == right.bytes_in == len(wire(*sent))
    assert (left.bytes_in, right.bytes_out) == (0, 0)


def test_the_bytes_on_the_wire(raw: tuple[socket.socket, socket.socket]) -> None:
    link = Link(raw[0])
    assert link.peer == endpoint(raw[1].getsockname())
    link.send(FRAME, b"ab", b"c")
    link.send(CONTROL)
    assert link.flush()
    assert raw[1].recv(100) == b"\x03\x00\x00\x00\x02abc" + b"\x00\x00\x00\x00\x01"
    link.close()


def test_nothing_to_read_is_no_message(pair: tuple[Link, Link]) -> None:
    assert pair[0].readable() == []
    assert pair[0].flush()


def test_buffers_of_any_item_size_are_sent_as_bytes(loop: EventLoop, pair: tuple[Link, Link]) -> None:
    left, right = pair
    got = collect(loop, right)
    numbers = memoryview(bytes(range(240))).cast("d", (5, 6))
    left.send(FRAME, numbers, *[numbers] * 10)
    left.flush()
    run(loop, lambda: got)
    assert got == [(FRAME, bytes(range(240)) * 11)]


def test_a_large_payload_is_queued_without_a_copy_and_released(loop: EventLoop, pair: tuple[Link, Link]) -> None:
    left, right = pair
    payload = bytearray(random.Random(1).randbytes(2 * MIB))
    left.send(FRAME, payload)
    with pytest.raises(BufferError):
        payload.clear()  # somebody looks at it
    got = collect(loop, right)
    drain(loop, left)
    run(loop, lambda: got)
    assert got == [(FRAME, bytes(payload))]
    payload.clear()  # nobody does any more


def test_100_mb_arrive_whole(loop: EventLoop, pair: tuple[Link, Link]) -> None:
    left, right = pair
    chance = random.Random(7)
    sizes = [0, 1, 4, 5, 6, 12 * MIB, 40 * MIB]
    sizes += [chance.choice([chance.randrange(300), chance.randrange(MIB)]) for _ in range(200)]
    chance.shuffle(sizes)
    noise = chance.randbytes(max(sizes))
    total = sum(sizes)
    assert total > 100_000_000
    sent, got = hashlib.sha256(), hashlib.sha256()
    arrived: list[int] = []

    def receive(mask: int) -> None:
        for kind, payload in right.readable():
            assert kind == FRAME
            arrived.append(len(payload))
            got.update(payload)

    for size in sizes:
        start = chance.randrange(len(noise) - size + 1)
        payload = memoryview(noise)[start : start + size]
        third = size // 3
        left.send(FRAME, payload[:third], payload[third:])
        sent.update(payload)
    loop.register(right, selectors.EVENT_READ, receive)
    drain(loop, left)
    run(loop, lambda: len(arrived) == len(sizes))
    assert arrived == sizes
    assert got.digest() == sent.digest()
    assert left.bytes_out == right.bytes_in == total + 5 * len(sizes)


def test_tiny_kernel_buffers(loop: EventLoop, pair: tuple[Link, Link]) -> None:
    left, right = pair
    left._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    right._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)  # with less, the kernel waits for its timers
    chance = random.Random(3)
    sent = [(chance.choice([CONTROL, FRAME]), chance.randbytes(chance.choice([3, 700, 40_000]))) for _ in range(60)]
    for kind, payload in sent:
        at = chance.randrange(len(payload))
        left.send(kind, payload[:at], payload[at:])
    total = left.queued_bytes
    assert not left.flush()
    assert left.needs_write
    assert 0 < left.queued_bytes == total - left.bytes_out < total
    got = collect(loop, right)
    drain(loop, left)
    run(loop, lambda: len(got) == len(sent))
    assert got == sent
    assert left.bytes_out == right.bytes_in == total


def test_more_buffers_than_one_system_call_takes(loop: EventLoop, pair: tuple[Link, Link]) -> None:
    left, right = pair
    got = collect(loop, right)
    left.send(FRAME, *[b"12"] * 5000)
    left.flush()
    run(loop, lambda: got)
    assert got == [(FRAME, b"12" * 5000)]


def test_one_call_does_a_bounded_amount(loop: EventLoop, pair: tuple[Link, Link]) -> None:
    left, right = pair
    frames = 300
    for _ in range(frames):
        left.send(FRAME, bytes(64 << 10))
    left.flush()
    assert left.bytes_out <= WRITE_BYTES + MIB + (64 << 10)
    drain(loop, left)
    got: list[Message] = []
    shares: list[int] = []

    def receive(mask: int) -> None:
        before = right.bytes_in
        got.extend(right.readable())
        shares.append(right.bytes_in - before)

    loop.register(right, selectors.EVENT_READ, receive)
    run(loop, lambda: len(got) == frames)
    assert max(shares) < READ_BYTES + MIB


# any way of cutting the stream


@dataclass
class Dribble:
    """A socket that takes and gives as many bytes at a time as the test sets."""

    sizes: Iterator[int]
    incoming: bytes = b""
    outgoing: bytearray = field(default_factory=bytearray)

    def sendmsg(self, buffers: list[Any]) -> int:
        data = b"".join(buffers)[: next(self.sizes)]
        if not data:
            raise BlockingIOError
        self.outgoing += data
        return len(data)

    def recv_into(self, buffer: memoryview) -> int:
        data = self.incoming[: min(next(self.sizes), len(buffer))]
        if not data:
            raise BlockingIOError
        self.incoming = self.incoming[len(data) :]
        buffer[: len(data)] = data
        return len(data)

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, *option: int) -> None:
        pass


def sizes(data: st.DataObject) -> Iterator[int]:
    drawn = data.draw(st.lists(st.integers(0, 60), max_size=30))
    yield from drawn
    step = data.draw(st.integers(1, 4000))
    while True:
        yield step


messages = st.lists(
    st.tuples(st.sampled_from([CONTROL, FRAME]), st.lists(st.binary(max_size=50) | st.just(b"z" * 3000), max_size=4)),
    max_size=8,
)


@given(messages, st.data())
def test_any_cut_of_what_is_sent(messages: list[tuple[int, list[bytes]]], data: st.DataObject) -> None:
    sock = Dribble(sizes(data))
    link = Link(sock, "dribble")  # type: ignore[arg-type]
    for kind, buffers in messages:
        link.send(kind, *buffers)
    while not link.flush():
        assert link.needs_write
        assert link.queued_bytes == sum(map(len, link._out)) > 0
    assert link.queued_bytes == 0
    assert sock.outgoing == wire(*((kind, b"".join(buffers)) for kind, buffers in messages))
    assert link.bytes_out == len(sock.outgoing)


@given(messages, st.data())
def test_any_cut_of_what_is_received(messages: list[tuple[int, list[bytes]]], data: st.DataObject) -> None:
    sent = [(kind, b"".join(buffers)) for kind, buffers in messages]
    sock = Dribble(sizes(data), wire(*sent))
    link = Link(sock, "dribble")  # type: ignore[arg-type]
    got: list[Message] = []
    while sock.incoming:
        got += link.readable()
    assert got == sent
    assert link.bytes_in == len(wire(*sent))


# violations and ends


def expect(loop: EventLoop, link: Link, error: type[Exception], match: str) -> list[Message]:
    """Run until the link raises this; the messages that came before."""
    got: list[Message] = []
    raised: list[Exception] = []

    def receive(mask: int) -> None:
        try:
            got.extend(link.readable())
        except (LinkBroken, LinkClosed) as broken:
            raised.append(broken)

    loop.register(link, selectors.EVENT_READ, receive)
    run(loop, lambda: raised)
    assert type(raised[0]) is error
    assert match in str(raised[0])
    assert str(raised[0]).startswith(f"{link.peer}: ")
    with pytest.raises(error):  # and so it stays
        link.readable()
    loop.unregister(link)
    return got


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_an_unknown_kind_breaks_the_link(loop: EventLoop, raw: tuple[socket.socket, socket.socket], kind: int) -> None:
    link = Link(raw[0])
    raw[1].sendall(wire((kind, b"")))
    assert expect(loop, link, LinkBroken, "unknown kind") == []
    link.close()


@pytest.mark.parametrize("kind", [CONTROL, FRAME])
def test_an_oversized_length_breaks_the_link(
    loop: EventLoop, raw: tuple[socket.socket, socket.socket], kind: int
) -> None:
    link = Link(raw[0])
    raw[1].sendall(struct.pack("<IB", LIMITS[kind] + 1, kind))
    assert expect(loop, link, LinkBroken, "oversized") == []
    link.close()


def test_a_length_within_the_limit_takes_no_memory_before_its_bytes(raw: tuple[socket.socket, socket.socket]) -> None:
    link = Link(raw[0])
    raw[1].sendall(struct.pack("<IB", LIMITS[FRAME], FRAME) + b"x")
    raw[0].setblocking(True)
    assert raw[0].recv(1, socket.MSG_PEEK)
    raw[0].setblocking(False)
    while link.bytes_in < 6:
        assert link.readable() == []
    assert link._body is not None
    assert len(link._body.getvalue()) <= 4 * MIB
    link.close()


def test_noise_breaks_the_link(loop: EventLoop, raw: tuple[socket.socket, socket.socket]) -> None:
    link = Link(raw[0])
    raw[1].sendall(b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n")
    assert expect(loop, link, LinkBroken, "unknown kind") == []
    link.close()


def test_what_came_before_a_violation_is_handed_out(loop: EventLoop, raw: tuple[socket.socket, socket.socket]) -> None:
    link = Link(raw[0])
    before = [(CONTROL, b"last words"), (FRAME, b"x" * 2000)]
    raw[1].sendall(wire(*before, (9, b"?")))
    assert expect(loop, link, LinkBroken, "unknown kind of message: 9") == before
    link.close()


@pytest.mark.parametrize("rest", [b"", b"\x05\x00", b"\x05\x00\x00\x00\x02", b"\x05\x00\x00\x00\x02abcd"])
def test_the_end_of_the_stream(loop: EventLoop, raw: tuple[socket.socket, socket.socket], rest: bytes) -> None:
    link = Link(raw[0])
    before = [(CONTROL, b"last words")] * 3
    raw[1].sendall(wire(*before) + rest)
    raw[1].close()
    how = "closed the connection in the middle of a message" if rest else "closed the connection"
    assert expect(loop, link, LinkClosed, how) == before
    link.close()


def test_a_reset_breaks_the_link(loop: EventLoop, raw: tuple[socket.socket, socket.socket]) -> None:
    link = Link(raw[0])
    raw[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw[1].close()
    assert expect(loop, link, LinkBroken, "receiving failed") == []
    link.close()


def test_after_a_failed_flush_the_last_words_are_still_there(
    loop: EventLoop, raw: tuple[socket.socket, socket.socket]
) -> None:
    link = Link(raw[0], "worker 3")
    raw[1].sendall(wire((CONTROL, b"the reason")))
    raw[1].close()
    with pytest.raises(LinkBroken, match="worker 3: sending failed"):
        for _ in range(1000):
            link.send(FRAME, bytes(100_000))
            link.flush()
    assert link.queued_bytes == 0
    assert not link.needs_write
    with pytest.raises(LinkBroken, match="sending failed"):
        link.send(CONTROL)
    with pytest.raises(LinkBroken, match="sending failed"):
        link.flush()
    assert link.readable() == [(CONTROL, b"the reason")]
    with pytest.raises((LinkClosed, LinkBroken)):
        link.readable()
    link.close()


def test_close_is_final_and_may_be_repeated(pair: tuple[Link, Link]) -> None:
    left, _ = pair
    left.send(FRAME, bytes(5000))
    assert left.fileno() >= 0
    left.close()
    left.close()
    assert left.fileno() == -1
    assert left.queued_bytes == 0
    assert not left.needs_write
    for use in (left.flush, left.readable, lambda: left.send(CONTROL)):
        with pytest.raises(LinkClosed, match="left's peer: closed by this side"):
            use()


def test_what_must_not_be_sent_is_an_error_of_ours(pair: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    left, _ = pair
    with pytest.raises(ValueError, match="unknown kind of message: 3"):
        left.send(3, b"")
    monkeypatch.setitem(link_module.LIMITS, CONTROL, 10)
    left.send(CONTROL, bytes(10))
    with pytest.raises(ValueError, match="at most 10 bytes, not 11"):
        left.send(CONTROL, bytes(5), bytes(6))
    assert left.queued_bytes == 15


def test_the_socket_is_set_up(pair: tuple[Link, Link]) -> None:
    sock = pair[0]._sock
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.gettimeout() == 0


def test_addresses_are_written_the_usual_way() -> None:
    assert endpoint(("10.0.0.1", 7077)) == "10.0.0.1:7077"
    assert endpoint(("::1", 7077, 0, 0)) == "[::1]:7077"
