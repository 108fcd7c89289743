"""A link: an authenticated TCP connection that carries whole messages, for an event loop.

On the wire a message is `[u32 length][u8 kind][payload]`, little-endian; `length` is the size of the payload. There are
two kinds, each with a limit: CONTROL (the conversations) and FRAME (records). They share one FIFO per peer, so no message
of one kind can overtake one of the other.

*Sending* never copies a payload above a kilobyte: buffers are queued as views and handed to the kernel together. A buffer
must not change until it has been sent. *Receiving* copies a payload once, out of a scratch buffer that all links of a
thread share; the memory for a large payload grows with what really arrived, not with what its header promised. Both do a
bounded amount per call, so one fast peer cannot hold the loop.

*Ends.* `LinkClosed`: the other side closed. `LinkBroken`: it violated the protocol, or the socket failed. Everything that
arrived complete before either is handed out first. Sending and receiving fail apart: after `flush` has raised, the last
messages of the peer can still be read.
"""

import contextlib
import functools
import io
import os
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tailrace.errors import TailraceError

CONTROL: Final = 1
FRAME: Final = 2
OVER: Final = b"over"  # on the link of a worker's signs of life: its job is over
LIMITS: Final = {CONTROL: 1 << 30, FRAME: 1 << 30}  # largest payload per kind

READ_BYTES: Final = 1 << 20  # about this much per call of readable()
WRITE_BYTES: Final = 4 << 20  # about this much per call of flush()
SOCKET_BYTES: Final = 4 << 20  # requested size of the kernel's buffers

_HEADER: Final = struct.Struct("<IB")
_SCRATCH_BYTES: Final = 128 << 10
_TRUSTED_BYTES: Final = 4 << 20  # memory taken for a payload before it has arrived
_GATHER_BYTES: Final = 1 << 20  # about this much per system call
_GATHER_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX")) if "SC_IOV_MAX" in os.sysconf_names else 16
_SMALL_BYTES: Final = 1024  # up to here, copying is cheaper than one more entry in a gather list

_threads = threading.local()


class LinkError(TailraceError):
    """An error of a link that is of no more use. `peer` names the other side."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer = peer
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.peer}: {self.reason}"


class TooLarge(TailraceError, ValueError):
    """An error of a message that is too large to send: the other side would take it for a violation. The link is still of
    use."""


class LinkClosed(LinkError):
    """The end of a link: the other side closed it (or this side did, if `reason` says so)."""


class LinkBroken(LinkError):
    """The end of a link whose other side violated the protocol, or whose socket failed."""


class Link:
    """A connection, after its handshake. Takes over `sock` and makes it non-blocking."""

    _in_parts = False
    """True if the socket hands out less at a time than has arrived."""

    def __init__(self, sock: socket.socket, peer: str | None = None) -> None:
        self.peer = endpoint(sock.getpeername()) if peer is None else peer  # may be renamed by the owner
        self.bytes_in = 0
        self.bytes_out = 0
        self.queued_bytes = 0  # == sum of len over _out
        self.watched = selectors.EVENT_READ  # what its owner's loop waits for
        self.ready: Callable[[int], object] | None = None  # what its owner has registered, to register it again
        sock.setblocking(False)
        _tune(sock)
        self._sock = sock
        self._out: deque[bytes | memoryview] = deque()
        self._head = b""  # a header that has arrived in part
        self._body: io.BytesIO | None = None  # a payload that has arrived in part; then _head is empty
        self._kind = 0  # of _body
        self._missing = 0  # bytes _body waits for, > 0 while there is one
        self._read_error: LinkError | None = None
        self._write_error: LinkError | None = None

    def __repr__(self) -> str:
        return f"<Link to {self.peer}, in {self.bytes_in}, out {self.bytes_out}, queued {self.queued_bytes}>"

    def fileno(self) -> int:
        """The file descriptor of the socket; -1 once closed."""
        return self._sock.fileno()

    @property
    def needs_write(self) -> bool:
        return bool(self._out)

    # sending

    def send(self, kind: int, *buffers: Any) -> None:
        """Queues one message whose payload is these buffers in a row. Nothing is sent before `flush`."""
        if self._write_error is not None:
            raise self._write_error.with_traceback(None)
        if kind not in LIMITS:
            raise ValueError(f"unknown kind of message: {kind}")
        whole = [memoryview(buffer) for buffer in buffers]
        views = [view.cast("B") for view in whole if view.nbytes]
        size = sum(map(len, views))
        if size > LIMITS[kind]:
            raise TooLarge(f"a message of kind {kind} has at most {LIMITS[kind]} bytes, not {size}")
        header = _HEADER.pack(size, kind)
        if size <= _SMALL_BYTES:
            self._out.append(b"".join((header, *views)))
        else:
            self._out.append(header)
            self._out.extend(views)
        self.queued_bytes += len(header) + size

    def flush(self) -> bool:
        """Sends what the kernel takes, within bounds. True when nothing is left; else call again when writable."""
        if self._write_error is not None:
            raise self._write_error.with_traceback(None)
        out = self._out
        budget = WRITE_BYTES
        while out and budget > 0:
            try:
                sent, given = self._give()
            except BlockingIOError:
                break
            except OSError as error:
                broken = LinkBroken(self.peer, f"sending failed: {error}")
                self._drop_output(broken)
                raise broken from error
            self.bytes_out += sent
            self.queued_bytes -= sent
            budget -= sent
            full = sent < given
            while out and sent >= len(out[0]):
                sent -= len(out.popleft())
            if sent:
                out[0] = memoryview(out[0])[sent:]
            if full:
                break  # the kernel's buffer is
        return not out

    def _give(self) -> tuple[int, int]:
        """Gives the kernel some of what is queued. Returns how much it has taken, and how much it was given."""
        batch = []
        size = 0
        for buffer in self._out:
            batch.append(buffer)
            size += len(buffer)
            if size >= _GATHER_BYTES or len(batch) == _GATHER_MAX:
                break
        return self._sock.sendmsg(batch), size

    # receiving

    def readable(self) -> list[tuple[int, bytes]]:
        """Reads what is there, within bounds, and returns the messages (kind, payload) that are now complete."""
        if self._read_error is not None:
            raise self._read_error.with_traceback(None)
        messages: list[tuple[int, bytes]] = []
        scratch = _scratch()
        budget = READ_BYTES
        try:
            while budget > 0 or self._held_back():
                count = self._take(scratch)
                if not count:
                    torn = " in the middle of a message" if self._head or self._body is not None else ""
                    raise LinkClosed(self.peer, f"closed the connection{torn}")
                self.bytes_in += count
                budget -= count
                self._parse(scratch[:count], messages)
                if count < len(scratch) and not self._in_parts:
                    break  # most likely that was all; if not, the loop reports it
        except BlockingIOError:
            pass
        except LinkError as error:
            self._drop_input(error, messages)
        except OSError as error:
            self._drop_input(LinkBroken(self.peer, f"receiving failed: {error}"), messages)
        return messages

    def _take(self, scratch: memoryview) -> int:
        """Reads some of what has arrived. Raises `BlockingIOError` if nothing has."""
        return self._sock.recv_into(scratch)

    def _held_back(self) -> bool:
        """True if something has arrived that the loop will not announce."""
        return False

    def _parse(self, data: memoryview, messages: list[tuple[int, bytes]]) -> None:
        """Appends the messages that `data` completes; keeps what it leaves open."""
        at, end = 0, len(data)
        if self._body is not None:
            at = min(self._missing, end)
            self._body.write(data[:at])
            self._missing -= at
            if self._missing:
                return
            messages.append((self._kind, self._body.getvalue()))
            self._body = None
        elif self._head:
            at = min(_HEADER.size - len(self._head), end)
            self._head += data[:at]
            if len(self._head) < _HEADER.size:
                return
            at = self._payload(self._head, 0, data, at, messages)
            self._head = b""
        while end - at >= _HEADER.size:
            at = self._payload(data, at, data, at + _HEADER.size, messages)
        if at < end:
            self._head = bytes(data[at:])

    def _payload(
        self, header: bytes | memoryview, offset: int, data: memoryview, at: int, messages: list[tuple[int, bytes]]
    ) -> int:
        """Takes the payload that `header[offset:]` announces from `data[at:]`. Returns where it ends."""
        size: int
        kind: int
        size, kind = _HEADER.unpack_from(header, offset)
        limit = LIMITS.get(kind)
        if limit is None:
            raise LinkBroken(self.peer, f"unknown kind of message: {kind}")
        if size > limit:
            raise LinkBroken(self.peer, f"oversized message: {size} bytes of kind {kind}, the limit is {limit}")
        stop = at + size
        if stop <= len(data):
            messages.append((kind, bytes(data[at:stop])))
            return stop
        self._body = _body(size)
        self._body.write(data[at:])
        self._kind = kind
        self._missing = stop - len(data)
        return len(data)

    # the end

    def close(self) -> None:
        """Closes the link at once; what is queued is lost. May be called again. Unregister from the loop first."""
        if self._sock.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            # A child that user code has forked would hold the connection open.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        self._let_go()

    def _let_go(self) -> None:
        self._sock.close()
        error = LinkClosed(self.peer, "closed by this side")
        self._drop_output(error)
        self._read_error = error
        self._head, self._body = b"", None

    def local_host(self) -> str:
        """The address of this side: the one under which this machine reaches the peer."""
        return str(self._sock.getsockname()[0])

    def detach(self) -> socket.socket:
        """The socket itself, for an owner that goes on with it in its own way. The link is closed by this."""
        sock = self._sock.dup()
        self._let_go()
        return sock

    def _drop_output(self, error: LinkError) -> None:
        self._write_error = error
        self._out.clear()
        self.queued_bytes = 0

    def _drop_input(self, error: LinkError, messages: list[tuple[int, bytes]]) -> None:
        self._read_error = error
        self._head, self._body = b"", None
        if not messages:
            raise error
        # The next call raises. Make sure that there is one: a socket shut for reading is readable.
        with contextlib.suppress(OSError):  # not connected any more, which is reported as readable too
            socket.socket.shutdown(self._sock, socket.SHUT_RD)  # a socket of TLS would go on without TLS


def endpoint(address: Any) -> str:
    """The usual way to write a socket address, like "10.0.0.1:7077" or "[::1]:7077"."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _scratch() -> memoryview:
    """A buffer for one call of `readable`: nothing stays in it, so one per thread is enough."""
    try:
        return _threads.scratch  # type: ignore[no-any-return]
    except AttributeError:
        _threads.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        return _threads.scratch  # type: ignore[no-any-return]


def _body(size: int) -> io.BytesIO:
    """A place for a payload of `size` bytes, with as much of it as is safe to take on the word of a header.

    Writing into it grows it in place, and its `getvalue` hands the bytes over without copying them.
    """
    body = io.BytesIO()
    body.seek(min(size, _TRUSTED_BYTES) - 1)
    body.write(b"\0")
    body.seek(0)
    return body


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        if _grants(option):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)


@functools.cache
def _grants(option: int) -> bool:
    """True if the kernel grants `SOCKET_BYTES`. If it does not, a request would pin the buffer below what it grows to on
    its own."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
        return probe.getsockopt(socket.SOL_SOCKET, option) >= SOCKET_BYTES
