"""A link over TLS. It sends and receives as a link does; only the handling of the socket differs."""

from __future__ import annotations

import socket
import ssl
from typing import Final, cast

from tailrace.runtime.network.link import Link

RECORD_BYTES: Final = 16 << 10  # the largest record of TLS


class SecureLink(Link):
    """One connection over TLS, after both handshakes."""

    _sock: ssl.SSLSocket
    _in_parts = True  # record by record

    def _give(self) -> tuple[int, int]:
        """Gives the socket small buffers together, large ones as they are: TLS copies what it encrypts anyway. The socket
        requires data that it could not send once more, and gets them: the queue still begins with them."""
        first = self._out[0]
        data = first
        if len(first) < RECORD_BYTES and len(self._out) > 1:
            parts: list[bytes | memoryview] = []
            size = 0
            for buffer in self._out:
                if parts and size + len(buffer) > RECORD_BYTES:
                    parts.append(memoryview(buffer)[: RECORD_BYTES - size])
                    break
                parts.append(buffer)
                size += len(buffer)
            data = b"".join(parts)
        try:
            return self._sock.send(data), len(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError) as error:
            raise BlockingIOError from error

    def _take(self, scratch: memoryview) -> int:
        try:
            return self._sock.recv_into(scratch)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def _held_back(self) -> bool:
        return self._sock.pending() > 0

    def detach(self) -> socket.socket:
        """The socket itself: it cannot be duplicated, so this link lets go of it without closing it."""
        sock = self._sock
        nothing = socket.socket()
        nothing.close()
        self._sock = cast(ssl.SSLSocket, nothing)
        self._let_go()
        return sock


def link_of(sock: socket.socket, peer: str | None) -> Link:
    """The link for a connected socket, after its handshakes."""
    return (SecureLink if isinstance(sock, ssl.SSLSocket) else Link)(sock, peer)


def hung_up(error: OSError) -> bool:
    """True if the peer has left, rather than refused a message or a certificate."""
    return not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
