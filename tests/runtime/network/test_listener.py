"""Connections that get in, those that do not, and what the loop does for both."""

import os
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tailrace.protocol.handshake import MAGIC, VERSION, Acceptor, Dialer, Refusal
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.link import CONTROL, FRAME, Link
from tailrace.runtime.network.listener import DialFailed, Listener, dial

TOKEN = b"the token of the job, 32 bytes.."
OTHER = b"the token of another job, alike."
NONCE = bytes(range(32))
HELLO = MAGIC + VERSION.to_bytes(2, "little") + NONCE
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A loop, a listener on it with a clock that stands still, and the links it made."""

    def __init__(self, loop: EventLoop, **options: int) -> None:
        self.loop = loop
        self.clock = Clock()
        self.links: list[Link] = []
        self.listener = Listener(TOKEN, Binding("127.0.0.1"), loop, self.links.append, clock=self.clock, **options)
        self.raw: list[socket.socket] = []

    def connect(self, data: bytes = b"") -> socket.socket:
        """A stranger, known to the listener."""
        sock = socket.create_connection(self.listener.address)
        self.raw.append(sock)
        seen = self.listener.pending + sum(self.listener.refused.values())
        self.run(lambda: self.listener.pending + sum(self.listener.refused.values()) > seen)
        sock.sendall(data)
        return sock

    def later(self, seconds: float) -> None:
        self.clock.now += seconds

    def run(self, until: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not until():
            left = deadline - time.monotonic()
            assert left > 0, "this takes too long"
            self.loop.poll(left)

    def dial(self, token: bytes = TOKEN) -> Link:
        """Dial from another thread while the loop runs here."""
        with ThreadPoolExecutor(1) as pool:
            dialled: Future[Link] = pool.submit(dial, self.listener.address, token, 10)
            dialled.add_done_callback(lambda _: self.loop.wake())
            self.run(dialled.done)
        link = dialled.result()
        self.links.append(link)
        return link

    def refused(self) -> dict[Refusal, int]:
        return {reason: count for reason, count in self.listener.refused.items() if count}

    def close(self) -> None:
        self.listener.close()
        for end in (*self.links, *self.raw):
            end.close()


@pytest.fixture(autouse=True)
def no_fd_leaks() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def loop(no_fd_leaks: None) -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


@pytest.fixture
def world(loop: EventLoop) -> Iterator[World]:
    world = World(loop)
    yield world
    world.close()


@pytest.fixture
def server(no_fd_leaks: None) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def hung_up(sock: socket.socket) -> bool:
    """Has the listener closed this connection, with nothing sent that was not read yet?"""
    sock.settimeout(10)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:  # it had not read all that was sent
        return True


# who gets in


def test_a_peer_with_the_token_gets_in(world: World) -> None:
    dialled = world.dial()
    world.run(lambda: len(world.links) == 2)
    (accepted,) = (link for link in world.links if link is not dialled)
    host, port = world.listener.address
    assert dialled.peer == f"{host}:{port}"
    assert accepted.peer == "{}:{}".format(*dialled._sock.getsockname())
    assert world.listener.accepted == 1
    assert world.listener.pending == 0
    assert world.listener.next_deadline is None
    assert world.refused() == {}

    for here, there in ((dialled, accepted), (accepted, dialled)):
        got: list[tuple[int, bytes]] = []
        world.loop.register(there, READ, lambda mask, there=there, got=got: got.extend(there.readable()))
        here.send(CONTROL, b"ping")
        here.send(FRAME, bytes(70_000))
        here.flush()
        world.run(lambda got=got: len(got) == 2)
        assert got == [(CONTROL, b"ping"), (FRAME, bytes(70_000))]
        world.loop.unregister(there)
    world.listener.expire(world.clock.now + 1000)  # links have no deadline
    assert accepted.bytes_in == accepted.bytes_out == 70_014


def test_what_sits_right_behind_the_ok_is_for_the_link_to_read(loop: EventLoop, server: socket.socket) -> None:
    def welcome() -> None:
        sock, _ = server.accept()
        with sock:
            acceptor = Acceptor(TOKEN, NONCE)
            acceptor.receive(sock.recv(1000))
            sock.sendall(acceptor.outgoing())
            acceptor.receive(sock.recv(1000))
            sock.sendall(acceptor.outgoing() + b"\x07\x00\x00\x00\x01welcome")

    with ThreadPoolExecutor(1) as pool:
        welcomed = pool.submit(welcome)
        link = dial(server.getsockname(), TOKEN, 10, peer="worker 3")
        welcomed.result(10)
    assert link.peer == "worker 3"
    got: list[tuple[int, bytes]] = []
    loop.register(link, READ, lambda mask: got.extend(link.readable()))
    loop.poll(10)
    assert got == [(CONTROL, b"welcome")]
    link.close()


def test_many_get_in_among_strangers(world: World) -> None:
    strangers = [world.connect(b"TAIL"[: n % 5]) for n in range(20)]
    dialled = [world.dial() for _ in range(10)]
    world.run(lambda: world.listener.accepted == 10)
    assert world.listener.pending == len(strangers)
    assert len({link.fileno() for link in dialled}) == 10
    world.listener.expire(world.clock.now + 5)
    assert world.refused() == {Refusal.TIMEOUT: 20}


def test_a_slow_peer_gets_in_byte_by_byte(world: World) -> None:
    sock = world.connect()
    dialer = Dialer(TOKEN, NONCE)
    while not dialer.done:
        for byte in dialer.outgoing():
            sock.sendall(bytes([byte]))
            world.loop.poll(10)
        sock.settimeout(10)
        dialer.receive(sock.recv(dialer.expected_bytes))
    assert world.listener.accepted == 1


def test_any_selector_will_do() -> None:
    with selectors.DefaultSelector() as selector:
        links: list[Link] = []
        listener = Listener(TOKEN, Binding("127.0.0.1"), selector, links.append)
        with ThreadPoolExecutor(1) as pool:
            dialled = pool.submit(dial, listener.address, TOKEN, 10)
            while not (links and dialled.done()):
                for key, mask in selector.select(0.01):
                    key.data(mask)
        links.append(dialled.result())
        listener.close()
        for link in links:
            link.close()


# who does not


def test_a_wrong_token_is_noticed_by_the_dialer(world: World) -> None:
    host, port = world.listener.address
    with pytest.raises(DialFailed, match=f"^{host}:{port}: .*does not know the token.*check") as failed:
        world.dial(OTHER)
    assert failed.value.peer == f"{host}:{port}"
    world.run(lambda: world.listener.pending == 0)
    assert world.refused() == {Refusal.HUNG_UP: 1}
    assert world.listener.accepted == 0


def test_a_wrong_proof_is_refused(world: World) -> None:
    sock = world.connect(HELLO)
    world.loop.poll(10)
    sock.settimeout(10)
    assert len(sock.recv(64)) == 64
    sock.sendall(bytes(32))
    world.run(lambda: world.listener.pending == 0)
    assert hung_up(sock)
    assert world.refused() == {Refusal.BAD_PROOF: 1}
    assert world.links == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n", Refusal.BAD_MAGIC),
        (b"\x16\x03\x01\x02\x00\x01\x00", Refusal.BAD_MAGIC),
        (bytes(1 << 20), Refusal.BAD_MAGIC),
        (MAGIC + b"\xff\xff", Refusal.BAD_VERSION),
        (HELLO + b"x", Refusal.TOO_MUCH),
        (HELLO + bytes(1 << 20), Refusal.TOO_MUCH),
    ],
    ids=["http", "tls", "a flood", "a later version", "one byte too many", "hello and a flood"],
)
def test_noise_is_refused(world: World, data: bytes, reason: Refusal) -> None:
    sock = world.connect()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: sock.sendall(data))
        world.run(lambda: world.listener.pending == 0)
        assert sending.exception(10) is None or isinstance(sending.exception(), OSError)
    assert hung_up(sock)
    assert world.refused() == {reason: 1}
    world.dial()  # and the listener still listens
    assert world.refused() == {reason: 1}


def test_who_hangs_up_is_forgotten(world: World) -> None:
    for data in (b"", b"TAIL", HELLO):
        world.connect(data).close()
    world.run(lambda: world.listener.pending == 0)
    assert world.refused() == {Refusal.HUNG_UP: 3}
    assert world.listener.next_deadline is None


def test_a_half_open_connection_expires(world: World) -> None:
    start = world.clock.now
    first = world.connect()
    world.clock.now += 2
    second = world.connect(HELLO)
    assert world.listener.next_deadline == start + 5
    world.listener.expire(start + 4.9)
    assert world.listener.pending == 2
    world.listener.expire(start + 5)
    assert hung_up(first)
    assert world.listener.next_deadline == start + 7
    assert world.refused() == {Refusal.TIMEOUT: 1}
    world.listener.expire(start + 100)
    assert world.listener.pending == 0
    assert world.listener.next_deadline is None
    assert world.refused() == {Refusal.TIMEOUT: 2}
    assert hung_up(second)


def test_trickling_bytes_win_no_time(world: World) -> None:
    start = world.clock.now
    sock = world.connect()
    for byte in HELLO[:20]:
        world.clock.now += 0.2
        sock.sendall(bytes([byte]))
        world.loop.poll(10)
    assert world.listener.next_deadline == start + 5
    world.listener.expire(start + 5)
    assert world.refused() == {Refusal.TIMEOUT: 1}


def test_time_in_which_nobody_was_served_is_not_counted(world: World) -> None:
    start = world.clock.now
    world.connect()
    world.clock.now += 30
    world.listener.excuse(28.0)
    world.listener.expire(start + 30)
    assert world.listener.pending == 1
    assert world.listener.next_deadline == start + 33
    late = world.connect()
    world.listener.expire(start + 33)
    assert world.refused() == {Refusal.TIMEOUT: 1}
    world.listener.expire(start + 35)
    assert world.refused() == {Refusal.TIMEOUT: 2}
    assert hung_up(late)


def test_the_oldest_has_to_go_when_there_are_too_many(loop: EventLoop) -> None:
    world = World(loop, max_pending=3)
    strangers = [world.connect() for _ in range(3)]
    strangers += [(world.later(1), world.connect())[1] for _ in range(2)]
    assert world.listener.pending == 3
    assert world.refused() == {Refusal.TOO_MANY: 2}
    assert hung_up(strangers[0])
    assert hung_up(strangers[1])
    world.later(1)
    world.dial()  # a peer is quicker than the strangers behind it
    assert world.refused() == {Refusal.TOO_MANY: 3}
    world.close()


def test_everybody_has_a_moment_however_many_come_behind(loop: EventLoop) -> None:
    """Where thousands came in a second, each of them put out one who had come milliseconds before: also a worker that knew
    the token, eight times in a row."""
    world = World(loop, max_pending=3)
    first = world.connect()
    behind = [socket.create_connection(world.listener.address, 10) for _ in range(6)]
    world.raw += behind
    world.run(lambda: world.listener.next_deadline == world.clock.now + 0.25)
    assert world.listener.pending == 3 and world.refused() == {}
    assert loop.poll(0) == 0  # no peer is looked for that cannot connect
    first.sendall(b"anything but a handshake" * 3)
    world.run(
        lambda: world.refused() == {Refusal.BAD_MAGIC: 1} and world.listener.pending == 3
    )  # the next one has his place
    world.later(0.25)
    world.listener.expire(world.clock.now)
    world.run(lambda: world.refused().get(Refusal.TOO_MANY) == 3)
    assert world.listener.pending == 3 and hung_up(behind[0])
    world.close()


def test_the_loop_does_not_spin_when_file_descriptors_run_out(world: World) -> None:
    sock = socket.socket()
    world.raw.append(sock)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (sock.fileno() + 1, limits[1]))
    try:
        sock.connect(world.listener.address)
        world.run(lambda: world.listener.next_deadline)
        assert world.loop.poll(0) == 0
        world.listener.expire(world.clock.now)
        assert world.loop.poll(0) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    deadline = world.listener.next_deadline
    assert deadline is not None
    world.listener.expire(deadline)
    world.run(lambda: world.listener.pending)


def test_close_ends_everything_but_the_links(world: World) -> None:
    dialled = world.dial()
    stranger = world.connect(b"TAIL")
    address = world.listener.address
    world.listener.close()
    world.listener.close()
    assert hung_up(stranger)
    assert world.listener.pending == 0
    assert world.loop.poll(0) == 0
    assert dialled.fileno() >= 0
    with pytest.raises(DialFailed, match="nobody listens at this port; check"):
        dial(address, TOKEN, 10)


# addresses and secrets


def test_a_listener_has_exactly_one_address(loop: EventLoop) -> None:
    for host in ("", "0.0.0.0", "::"):
        with pytest.raises(ValueError, match="one address"):
            Listener(TOKEN, Binding(host), loop, lambda link: None)
    with pytest.raises(ValueError, match="token"):
        Listener(b"short", Binding("127.0.0.1"), loop, lambda link: None)
    listener = Listener(TOKEN, Binding("127.0.0.1"), loop, lambda link: None)
    assert listener.address[0] == "127.0.0.1"
    assert listener.address[1] > 0
    with pytest.raises(DialFailed, match="nobody listens"):
        dial(("127.0.0.2", listener.address[1]), TOKEN, 10)
    listener.close()


# the error of dial


def failure(server: socket.socket, timeout: float, answer: Callable[[socket.socket], object]) -> str:
    """The error of dial for this answer."""

    def serve() -> None:
        sock, _ = server.accept()
        with sock:
            answer(sock)

    meeting = threading.Thread(target=serve)
    meeting.start()
    host, port = server.getsockname()
    with pytest.raises(DialFailed) as failed:
        dial((host, port), TOKEN, timeout)
    meeting.join(10)
    assert str(failed.value).startswith(f"{host}:{port}: ")
    assert "; check " in str(failed.value)
    assert TOKEN.decode() not in str(failed.value)
    return str(failed.value)


def test_dial_meets_silence(server: socket.socket) -> None:
    assert "no handshake within 0.05 s" in failure(server, 0.05, lambda sock: sock.recv(1000) and sock.recv(1000))


def test_dial_has_patience_with_who_is_there_but_busy(world: World) -> None:
    with ThreadPoolExecutor(1) as pool:
        dialled = pool.submit(dial, world.listener.address, TOKEN, 0.1, patience=20)
        time.sleep(0.5)  # nobody serves the listener; the kernel has taken the connection
        assert not dialled.done()
        dialled.add_done_callback(lambda _: world.loop.wake())
        world.run(dialled.done)
    world.links.append(dialled.result())
    assert world.refused() == {}


def test_dial_meets_a_trickle(server: socket.socket) -> None:
    """The time limit is for all of it, not for each byte."""

    def trickle(sock: socket.socket) -> None:
        sock.recv(1000)
        sock.settimeout(0.01)
        for _ in range(64):
            try:
                sock.sendall(b"x")
                assert sock.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                pass
            return  # it has given up

    assert "no handshake within 0.1 s" in failure(server, 0.1, trickle)


def test_dial_meets_another_program(server: socket.socket) -> None:
    data = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    assert "does not belong to this job" in failure(server, 10, lambda sock: (sock.recv(1000), sock.sendall(data)))


def test_dial_meets_another_job(server: socket.socket) -> None:
    def answer(sock: socket.socket) -> None:
        acceptor = Acceptor(OTHER, NONCE)
        acceptor.receive(sock.recv(1000))
        sock.sendall(acceptor.outgoing())

    assert "does not know the token" in failure(server, 10, answer)


def test_dial_is_hung_up_on(server: socket.socket) -> None:
    assert "the peer hung up during the handshake" in failure(server, 10, lambda sock: sock.recv(1000))


def test_dial_knows_no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(DialFailed, match=r"^driver\.example:7077: the host name is not known here .*check"):
        dial(("driver.example", 7077), TOKEN, 1)


def test_dial_does_not_take_itself_for_the_peer(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting to a free local port may get that very port as its own."""

    class Unlucky(socket.socket):
        def connect(self, address: tuple[str, int]) -> None:  # type: ignore[override]
            self.bind(address)
            super().connect(address)

    address = server.getsockname()
    server.close()
    monkeypatch.setattr(socket, "socket", Unlucky)
    with pytest.raises(DialFailed, match="nobody listens"):
        dial(address, TOKEN, 1)


def test_dial_tries_every_address_of_a_host(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = world.listener.address
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (("127.0.0.3", port), (host, port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    world.dial()
    world.run(lambda: world.listener.accepted == 1)


# the loop


def test_calls_from_other_threads_run_in_the_loop_in_order(loop: EventLoop) -> None:
    ran: list[tuple[int, int]] = []
    here = threading.get_ident()

    def call(who: int) -> None:
        for n in range(200):
            loop.call_soon_threadsafe(lambda n=n: ran.append((who, n)) or threads.add(threading.get_ident()))

    threads: set[int] = set()
    callers = [threading.Thread(target=call, args=(who,)) for who in range(4)]
    for caller in callers:
        caller.start()
    deadline = time.monotonic() + 30
    while len(ran) < 800:
        assert time.monotonic() < deadline
        loop.poll(10)
    for caller in callers:
        caller.join()
    assert threads == {here}
    for who in range(4):
        assert [n for caller, n in ran if caller == who] == list(range(200))


def test_wake_ends_a_poll(loop: EventLoop) -> None:
    for _ in range(5):
        loop.wake()
    assert loop.poll(None) == 0  # at once, and nothing was served
    assert loop.poll(0) == 0
    waker = threading.Thread(target=loop.wake)
    waker.start()
    assert loop.poll(None) == 0
    waker.join()


def test_a_call_made_by_a_call_runs_in_the_next_poll(loop: EventLoop) -> None:
    ran: list[str] = []
    loop.call_soon_threadsafe(lambda: (ran.append("a"), loop.call_soon_threadsafe(lambda: ran.append("b"))))
    assert loop.poll(None) == 1
    assert ran == ["a"]
    assert loop.poll(None) == 1
    assert ran == ["a", "b"]


def test_an_error_in_a_call_loses_no_other_call(loop: EventLoop) -> None:
    ran: list[str] = []
    loop.call_soon_threadsafe(lambda: 1 // 0)
    loop.call_soon_threadsafe(lambda: ran.append("next"))
    with pytest.raises(ZeroDivisionError):
        loop.poll(None)
    assert loop.poll(None) == 1
    assert ran == ["next"]


def test_who_was_unregistered_in_a_round_is_not_called_in_it(loop: EventLoop) -> None:
    """No call comes where its file descriptor has been given to another socket meanwhile, either."""
    one, two = socket.socketpair(), socket.socketpair()
    called: list[str] = []

    def reader(name: str, other: socket.socket) -> Callable[[int], None]:
        def ready(mask: int) -> None:
            called.append(name)
            loop.unregister(other)
            near, far = socket.socketpair()
            fd = other.detach()
            os.dup2(near.fileno(), fd)
            newcomer = socket.socket(fileno=fd)
            loop.register(newcomer, READ, lambda mask: called.append("newcomer"))
            newcomers.extend((near, far, newcomer))

        return ready

    newcomers: list[socket.socket] = []
    for here, there in ((one, two), (two, one)):
        loop.register(here[0], READ, reader("first", there[0]))
        here[1].sendall(b"x")
    loop.poll(10)
    assert called == ["first"]
    for sock in (*one, *two, *newcomers):
        sock.close()


def test_a_changed_interest_counts_in_the_same_round(loop: EventLoop) -> None:
    one, two = socket.socketpair(), socket.socketpair()
    called: list[tuple[str, int]] = []

    def first(mask: int) -> None:
        called.append(("first", mask))
        for sock in (one[0], two[0]):
            loop.modify(sock, WRITE, lambda mask: called.append(("changed", mask)))

    for here in (one, two):
        loop.register(here[0], READ, first)
        here[1].sendall(b"x")
    loop.poll(10)
    assert called == [("first", READ)]
    loop.poll(10)
    assert called[1:] == [("changed", WRITE)] * 2
    for sock in (*one, *two):
        sock.close()


def test_a_closed_loop_takes_no_calls() -> None:
    loop = EventLoop()
    assert loop.call_soon_threadsafe(lambda: None)
    loop.close()
    loop.close()
    loop.wake()
    assert not loop.call_soon_threadsafe(lambda: None)
