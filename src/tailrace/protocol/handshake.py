"""The handshake: two processes prove to each other that they know the token of the job.

Nothing of a connection is interpreted before the handshake is over. The token itself never travels::

    dialer                                      acceptor
      MAGIC, version, nonce_d   ------------>
                                <------------     nonce_a, HMAC(token, "accept" nonce_d nonce_a version)
      HMAC(token, "dial" ...)   ------------>
                                <------------     OK

Every message has a fixed size and the two sides take turns, so neither ever stores more than one message. A byte that
arrives out of turn is a refusal. The only exception follows from the order: the acceptor may send more right behind its OK,
and what the dialer then receives with it is `leftover`.

*Reflection.* A proof names the role of its maker, so a proof made by an acceptor is never good for a dialer,
and the other way round; a peer that shows us our own nonce is refused. *Replay.* Each proof covers both nonces, and
each side has its own drawn anew for every connection by the driver of these machines.

*What it does not do.* It authenticates the two ends; it does not encrypt or sign what follows (that is TLS), and the
acceptor answers before the dialer has proved anything. A short token could then be guessed offline, so a token has at
least `TOKEN_MIN` bytes and has to be random.

This is a pure state machine: bytes in, bytes out. `receive` raises `HandshakeRefused` and nothing else; after that the
half is dead: it raises the same again, has nothing to send, and is never done.
"""

import enum
import hmac
from typing import Final, NoReturn

from tailrace.errors import ProtocolViolation

MAGIC: Final = b"TAILRACE"
VERSION: Final = 1
NONCE_SIZE: Final = 32
TOKEN_MIN: Final = 16

_VERSION_BYTES: Final = VERSION.to_bytes(2, "little")
_PROOF_SIZE: Final = 32
_HELLO_SIZE: Final = len(MAGIC) + len(_VERSION_BYTES) + NONCE_SIZE
_ANSWER_SIZE: Final = NONCE_SIZE + _PROOF_SIZE
_OK: Final = b"\x06"


class Refusal(enum.Enum):
    """The reason for which a connection was turned away.

    The two halves find the first four. Their driver finds the others; they are listed here so that one count has one
    vocabulary.
    """

    BAD_MAGIC = "the peer does not speak this protocol"
    BAD_VERSION = "the peer speaks another version of this protocol"
    BAD_PROOF = "the peer does not know the token"
    TOO_MUCH = "the peer sent bytes out of turn"

    TIMEOUT = "the peer did not finish the handshake in time"
    TOO_MANY = "too many connections were waiting for their handshake"
    HUNG_UP = "the peer left before the end of the handshake"
    BAD_TLS = "the peer does not speak TLS, or shows no certificate of this job"


class HandshakeRefused(ProtocolViolation):
    """Raised where a peer must not be talked to: close the connection."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason.value


class _Half:
    """The common part of both halves: turns, sizes, and the end of it."""

    _may_follow: bool  # the peer may send something else right behind its last message of the handshake

    def __init__(self, token: bytes, nonce: bytes) -> None:
        if len(token) < TOKEN_MIN:
            raise ValueError(f"a token has at least {TOKEN_MIN} random bytes, not {len(token)}")
        if len(nonce) != NONCE_SIZE:
            raise ValueError(f"a nonce has {NONCE_SIZE} bytes, not {len(nonce)}")
        self.done = False  # never true in a refused half
        self.leftover = b""  # what the peer sent behind the handshake; empty until done
        self._token = token
        self._nonce = nonce
        self._refusal: Refusal | None = None
        self._outgoing = b""  # while it is not empty, it is our turn
        self._buffer = bytearray()  # len <= _expected
        self._expected = 0  # size of the one message the peer may send next

    @property
    def expected_bytes(self) -> int:
        """The number of bytes that the peer may still send in this turn. A reader that reads no more than this keeps
        `leftover` empty."""
        if self.done or self._outgoing or self._refusal is not None:
            return 0
        return self._expected - len(self._buffer)

    def outgoing(self) -> bytes:
        """The bytes that have to be sent now; they are returned once."""
        out, self._outgoing = self._outgoing, b""
        return out

    def receive(self, data: bytes) -> None:
        if self._refusal is not None:
            raise HandshakeRefused(self._refusal)
        if self.done:
            self.leftover += data
            return
        if not data:
            return
        if self._outgoing:
            self._refuse(Refusal.TOO_MUCH)
        room = self._expected - len(self._buffer)
        self._buffer += data[:room]
        rest = data[room:]
        self._glance()
        if len(self._buffer) < self._expected:
            return
        message = bytes(self._buffer)
        self._buffer.clear()
        self._take(message)
        if rest:
            if not (self.done and self._may_follow):
                self._refuse(Refusal.TOO_MUCH)
            self.leftover = bytes(rest)

    def _glance(self) -> None:
        """Refuses early a message whose first bytes are already wrong."""

    def _take(self, message: bytes) -> None:
        """Acts on one whole message of the peer."""
        raise NotImplementedError

    def _proof(self, role: bytes, dialer_nonce: bytes, acceptor_nonce: bytes) -> bytes:
        # Only the role has a variable length, and no two roles have the same: the fields cannot be shifted.
        return hmac.digest(self._token, role + dialer_nonce + acceptor_nonce + _VERSION_BYTES, "sha256")

    def _refuse(self, reason: Refusal) -> NoReturn:
        self._refusal = reason
        self.done = False
        self._outgoing = b""
        self._buffer.clear()
        raise HandshakeRefused(reason)


class Dialer(_Half):
    """The half that opened the connection, and sends first."""

    _may_follow = True

    def __init__(self, token: bytes, nonce: bytes) -> None:
        super().__init__(token, nonce)
        self._outgoing = MAGIC + _VERSION_BYTES + nonce
        self._expected = _ANSWER_SIZE
        self._proved = False

    def _take(self, message: bytes) -> None:
        if self._proved:
            if message != _OK:
                self._refuse(Refusal.BAD_PROOF)
            self.done = True
            return
        theirs, proof = message[:NONCE_SIZE], message[NONCE_SIZE:]
        genuine = hmac.compare_digest(proof, self._proof(b"accept", self._nonce, theirs))
        if not genuine or theirs == self._nonce:
            self._refuse(Refusal.BAD_PROOF)
        self._outgoing = self._proof(b"dial", self._nonce, theirs)
        self._expected = len(_OK)
        self._proved = True


class Acceptor(_Half):
    """The half that accepted the connection."""

    _may_follow = False

    def __init__(self, token: bytes, nonce: bytes) -> None:
        super().__init__(token, nonce)
        self._expected = _HELLO_SIZE
        self._theirs: bytes | None = None  # the dialer's nonce, once its first message is here

    def _glance(self) -> None:
        if self._theirs is not None:
            return
        start = bytes(self._buffer[: len(MAGIC)])
        if not MAGIC.startswith(start):
            self._refuse(Refusal.BAD_MAGIC)
        version = bytes(self._buffer[len(MAGIC) : len(MAGIC) + len(_VERSION_BYTES)])
        if not _VERSION_BYTES.startswith(version):
            self._refuse(Refusal.BAD_VERSION)

    def _take(self, message: bytes) -> None:
        if self._theirs is None:
            theirs = message[-NONCE_SIZE:]
            if theirs == self._nonce:
                self._refuse(Refusal.BAD_PROOF)
            self._theirs = theirs
            self._outgoing = self._nonce + self._proof(b"accept", theirs, self._nonce)
            self._expected = _PROOF_SIZE
            return
        if not hmac.compare_digest(message, self._proof(b"dial", self._theirs, self._nonce)):
            self._refuse(Refusal.BAD_PROOF)
        self._outgoing = _OK
        self.done = True
