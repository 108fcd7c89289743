"""The making of links: a `Listener` lets peers in, `dial` gets in at a peer.

A listener is bound to one address, as a rule the one that peers dial (`Binding`). A peer must finish the handshake before
a deadline, and the number of peers at their handshake is limited. The oldest has to go first, and not before it has had a
moment, however many wait behind it: a peer among thousands of strangers gets in. Nothing a stranger sends is stored
beyond one message of the handshake or interpreted in any other way, and refusals are counted by reason.
"""

import errno
import functools
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.protocol.handshake import NONCE_SIZE, Acceptor, Dialer, HandshakeRefused, Refusal
from tailrace.runtime.eventloop.selector import Registry
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.link import Link, LinkError, endpoint
from tailrace.runtime.network.securelink import hung_up, link_of
from tailrace.runtime.network.tls import Tls, accepting, dialing

_ACCEPTS_PER_CALL = 64
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_SECONDS = 0.1
_LEAST_SECONDS = 0.25
"""Least time in seconds for a handshake. A peer of this job takes milliseconds, on a busy machine some more."""


@dataclass(slots=True)
class _Pending:
    """A connection that has not proved anything yet."""

    sock: socket.socket
    acceptor: Acceptor
    deadline: float
    peer: str
    secured: bool = True
    """True if TLS is agreed upon, or there is none."""


class Listener:
    """A listening socket, served by a loop.

    The loop calls `accept_ready` and `socket_ready` through what is registered in `registry`. Its owner calls
    `expire(now)` not much later than `next_deadline`, with a reading of `clock`. A peer that has proved itself is handed
    to `on_link` as a `Link`; it is not registered any more then.
    """

    def __init__(
        self,
        token: bytes,
        at: Binding,
        registry: Registry,
        on_link: Callable[[Link], object],
        *,
        handshake_seconds: float = 5.0,
        max_pending: int = 128,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        Acceptor(token, bytes(NONCE_SIZE))  # raises now if the token is unfit
        self.refused: dict[Refusal, int] = dict.fromkeys(Refusal, 0)
        self.accepted = 0
        self._token = token
        self._registry = registry
        self._on_link = on_link
        self._handshake_seconds = handshake_seconds
        self._max_pending = max_pending
        self._clock = clock
        self._pending: dict[int, _Pending] = {}  # by fd; oldest first, so deadlines never decrease
        self._paused_until: float | None = None  # not accepting, for want of file descriptors or memory, or of room
        self._crowded = False  # of room
        self._tls = at.tls
        if at.tls is not None:
            accepting(at.tls)  # raises now if it is unfit
        self._sock = at.listen()
        bound = self._sock.getsockname()
        self.address: tuple[str, int] = (at.dialed or bound[0], bound[1])
        """The address that peers dial."""
        self._registry.register(self._sock, selectors.EVENT_READ, self._accept_event)

    @property
    def pending(self) -> int:
        """Number of connections at their handshake."""
        return len(self._pending)

    @property
    def next_deadline(self) -> float | None:
        """The time at which `expire` will next have something to do, on the listener's clock."""
        if not self._pending and self._paused_until is None:
            return None
        deadlines = [pending.deadline for pending in self._pending.values()][:1]
        if self._paused_until is not None:
            deadlines.append(self._paused_until)
        return min(deadlines, default=None)

    def accept_ready(self) -> None:
        """Accepts waiting connections, within bounds."""
        for turn in range(_ACCEPTS_PER_CALL):
            if self._sock.fileno() < 0 or self._paused_until is not None:
                return
            if (room_at := self._room_at()) is not None:
                if turn == 0:  # a connection does wait
                    self._crowded = True
                    self._pause(room_at)
                return
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause(self._clock() + _PAUSE_SECONDS)
                continue  # any other error belongs to one connection, which is gone
            while len(self._pending) >= self._max_pending:
                self._refuse(next(iter(self._pending)), Refusal.TOO_MANY)
            sock.setblocking(False)
            if self._tls is not None:
                try:
                    sock = accepting(self._tls).wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                except OSError:  # the caller has left already
                    sock.close()
                    self.refused[Refusal.HUNG_UP] += 1
                    continue
            acceptor = Acceptor(self._token, os.urandom(NONCE_SIZE))
            deadline = self._clock() + self._handshake_seconds
            fd = sock.fileno()
            self._pending[fd] = _Pending(sock, acceptor, deadline, endpoint(address), self._tls is None)
            self._registry.register(sock, selectors.EVENT_READ, functools.partial(self._socket_event, fd))

    def socket_ready(self, fd: int) -> None:
        """Goes on with one handshake."""
        pending = self._pending.get(fd)
        if pending is None:
            return  # refused since the event was reported
        try:
            link = _advance(pending)
        except HandshakeRefused as refused:
            self._refuse(fd, refused.reason)
        except OSError as error:
            self._refuse(fd, Refusal.HUNG_UP if pending.secured or hung_up(error) else Refusal.BAD_TLS)
        else:
            if link is not None:
                self._forget(fd)
                self.accepted += 1
                self._on_link(link)

    def expire(self, now: float) -> None:
        """Closes the connections whose deadline has come."""
        for fd, pending in list(self._pending.items()):
            if pending.deadline > now:
                break
            self._refuse(fd, Refusal.TIMEOUT)
        if self._paused_until is not None and self._paused_until <= now:
            self._go_on()

    def excuse(self, seconds: float) -> None:
        """Extends all deadlines by the time that the loop was held up, which is not the peers' fault."""
        for pending in self._pending.values():
            pending.deadline += seconds

    def close(self) -> None:
        """Stops listening, and closes connections at their handshake; links made are not touched. May be called again."""
        if self._sock.fileno() < 0:
            return
        if self._paused_until is None:
            self._registry.unregister(self._sock)
        self._paused_until = None
        self._sock.close()
        for pending in self._pending.values():
            self._registry.unregister(pending.sock)
            pending.sock.close()
        self._pending.clear()

    def _accept_event(self, mask: int) -> None:
        self.accept_ready()

    def _socket_event(self, fd: int, mask: int) -> None:
        self.socket_ready(fd)

    def _refuse(self, fd: int, reason: Refusal) -> None:
        pending = self._forget(fd)
        self.refused[reason] += 1  # before the caller knows: it may request the count
        pending.sock.close()

    def _forget(self, fd: int) -> _Pending:
        """Removes a connection that has finished its handshake, one way or the other: there is room for another one."""
        pending = self._pending.pop(fd)
        self._registry.unregister(pending.sock)
        if self._crowded:
            self._go_on()
        return pending

    def _room_at(self) -> float | None:
        """The time at which the oldest connection may be closed for another one; None if there is room now, or it may be
        closed now."""
        if len(self._pending) < self._max_pending:
            return None
        oldest = next(iter(self._pending.values()))
        room_at = oldest.deadline - self._handshake_seconds + _LEAST_SECONDS
        return room_at if room_at > self._clock() else None

    def _pause(self, until: float) -> None:
        """Stops watching for connections that cannot be accepted, or the loop would do nothing else."""
        self._registry.unregister(self._sock)
        self._paused_until = until

    def _go_on(self) -> None:
        self._paused_until, self._crowded = None, False
        self._registry.register(self._sock, selectors.EVENT_READ, self._accept_event)


def _advance(pending: _Pending) -> Link | None:
    """Does one step of a handshake. Returns the link, if that was the last."""
    sock, acceptor = pending.sock, pending.acceptor
    try:
        if not pending.secured:
            assert isinstance(sock, ssl.SSLSocket)
            sock.do_handshake()  # a fresh socket takes everything that TLS sends here
            pending.secured = True
        # One byte more than is due: it shows a caller that sends out of turn, and what follows the handshake stays
        # unread.
        data = sock.recv(acceptor.expected_bytes + 1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return None
    if not data:
        raise HandshakeRefused(Refusal.HUNG_UP)
    acceptor.receive(data)
    out = acceptor.outgoing()
    if out and sock.send(out) < len(out):
        raise HandshakeRefused(Refusal.HUNG_UP)  # a fresh socket has room for this; another one is no peer of this job
    return link_of(sock, pending.peer) if acceptor.done else None


class DialFailed(LinkError):
    """The failure to make a link. `peer` is the address, `reason` is what happened and what to check."""


class Unreachable(DialFailed):
    """The failure to reach a process: none listens there, or no network leads there."""


class HungUp(DialFailed):
    """The failure of a handshake in which the peer hung up. Strangers in great numbers may have crowded this process out,
    so another try may help."""


def dial(
    address: tuple[str, int],
    token: bytes,
    timeout: float,
    *,
    peer: str | None = None,
    patience: float | None = None,
    tls: Tls | None = None,
) -> Link:
    """Connects to a listener.

    For deployment only: it blocks, up to `timeout` seconds and for as long as the look-up of a host name takes. With
    `patience` a peer that is there but busy has that many seconds for its handshake.
    """
    deadline = time.monotonic() + timeout
    where = endpoint(address)
    dialer = Dialer(token, os.urandom(NONCE_SIZE))
    sock = _connect(address, deadline, timeout)
    patience = timeout if patience is None else patience
    try:
        if tls is not None:
            sock = dialing(tls).wrap_socket(sock, do_handshake_on_connect=False)
            sock.settimeout(_time_left(deadline + patience - timeout))
            sock.do_handshake()
        _greet(sock, dialer, deadline + patience - timeout)
        return link_of(sock, where if peer is None else peer)
    except BaseException as error:
        sock.close()
        if isinstance(error, (HandshakeRefused, OSError)):
            left = isinstance(error, OSError) and not isinstance(error, TimeoutError) and hung_up(error)
            raise (HungUp if left else DialFailed)(where, _diagnosis(error, patience)) from error
        raise


def _diagnosis(error: Exception, timeout: float) -> str:
    """The reason why a handshake failed, and what to check."""
    if isinstance(error, HandshakeRefused):
        what = f"the process that answers there does not belong to this job ({error})"
        check = "host and port, and that both sides were given the same token"
    elif isinstance(error, ssl.SSLError) and not hung_up(error):
        what = f"the peer and this process do not agree on TLS ({error})"
        check = (
            "that the port belongs to this job, and with certificates of your own that one authority vouches for all"
        )
    elif isinstance(error, TimeoutError):
        what = f"connected, but no handshake within {timeout:g} s"
        check = "that the port belongs to this job, and that the process there is not stopped or overloaded"
    else:
        what = f"the peer hung up during the handshake ({error})"
        check = "that the port belongs to this job, and that both sides run the same version of tailrace"
    return f"{what}; check {check}"


def _connect(address: tuple[str, int], deadline: float, timeout: float) -> socket.socket:
    """A connected blocking socket, from the first of the host's addresses that answers."""
    host, port = address
    where = endpoint(address)
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        what = f"the host name is not known here ({error}); check the address this process was given, and DNS"
        raise Unreachable(where, what) from error
    last: OSError = TimeoutError()
    for family, kind, proto, _, candidate in candidates:
        try:
            sock = socket.socket(family, kind, proto)
        except OSError as error:
            last = error
            continue
        try:
            sock.settimeout(_time_left(deadline))
            sock.connect(candidate)
            if sock.getsockname() == candidate:  # a free local port can be connected to itself
                raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
            return sock
        except OSError as error:
            sock.close()
            last = error
    if isinstance(last, ConnectionRefusedError):
        what = "nobody listens at this port; check that the process there is still alive and that the port is right"
    elif isinstance(last, TimeoutError):
        what = f"no answer within {timeout:g} s; check that this host is reachable from here under this address"
        what += " and that no firewall or network policy closes its ports to the other machines of the cluster"
    else:
        what = f"cannot connect ({last}); check that this host is reachable from here under this address"
    raise Unreachable(where, what) from last


def _greet(sock: socket.socket, dialer: Dialer, deadline: float) -> None:
    """Does the dialer's side of the handshake."""
    while True:
        sock.settimeout(_time_left(deadline))
        sock.sendall(dialer.outgoing())
        if dialer.done:
            return
        data = sock.recv(dialer.expected_bytes)  # never more: what follows is for the link to read
        if not data:
            raise ConnectionResetError("closed during the handshake")
        dialer.receive(data)


def _time_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
