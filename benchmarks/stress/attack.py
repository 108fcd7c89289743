"""Strangers in a process of their own: a line of JSON on standard input says whom they attack and how, one on standard
output what they have met."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import sys
import time
from collections import Counter, deque
from typing import Any

from tailrace.protocol import message_codec
from tailrace.protocol.deployment import Hello, PeerHello, Progress, SubtaskReport
from tailrace.protocol.handshake import MAGIC, NONCE_SIZE, VERSION
from tailrace.runtime.network.link import CONTROL, FRAME
from tailrace.runtime.network.listener import DialFailed, dial

HELLO = MAGIC + VERSION.to_bytes(2, "little") + bytes(NONCE_SIZE)
AT_A_TIME = 32
NO_TIME = struct.pack("ii", 1, 0)
"""For SO_LINGER: a connection that is closed leaves nothing behind that waits."""

Address = tuple[str, int]


def noise(chance: random.Random) -> bytes:
    """Something that is no handshake, or not all of one."""
    kind = chance.randrange(7)
    if kind == 0:
        return b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
    if kind == 1:
        return b"\x16\x03\x01\x02\x00\x01" + chance.randbytes(200)
    if kind == 2:
        return bytes(chance.randrange(1, 300))
    if kind == 3:
        return chance.randbytes(chance.choice([1, 8, 41, 42, 43, 500, 20_000]))
    if kind == 4:
        return HELLO + chance.randbytes(64)
    if kind == 5:
        return HELLO[: chance.randrange(1, len(HELLO))] + chance.randbytes(40)
    return struct.pack("<IB", chance.getrandbits(32), chance.choice([CONTROL, FRAME, 77])) + chance.randbytes(30)


def malform(chance: random.Random) -> bytes:
    """A message that nobody may send, whole, of who knows the token: a true one that is changed, mostly."""
    reports = [SubtaskReport(v, 0, records_in=chance.getrandbits(40)) for v in range(3)]
    true = [Hello(0, "127.0.0.1", 1, 1, "another", 1), PeerHello(0, 1, 1, "another"), Progress(reports, 5)]
    body = bytearray(message_codec.encode(chance.choice(true)))
    kind = chance.randrange(6)
    if kind == 0:
        return struct.pack("<IB", chance.choice([1 << 31, (64 << 20) + 1]), CONTROL)
    if kind == 1:
        return struct.pack("<IB", len(body), chance.randrange(3, 256)) + body
    if kind == 2:
        return struct.pack("<IB", len(body), FRAME) + body
    if kind == 3:
        body = body[: chance.randrange(len(body))] + chance.randbytes(8)
    else:
        for _ in range(chance.randrange(1, 6)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        body[0] ^= 1  # no kind of message begins so
    return struct.pack("<IB", len(body), CONTROL) + bytes(body)


def connect(to: Address) -> socket.socket:
    sock = socket.create_connection(to, 10)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_TIME)
    return sock


def hung_up(sock: socket.socket) -> str:
    """How a connection ends that the other side is to close."""
    sock.settimeout(30)
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return "NOT CLOSED"
    except OSError as error:
        return type(error).__name__
    finally:
        sock.close()
    return "closed"


def frames(to: Address, count: int, token: bytes | None, seed: int) -> Counter[str]:
    """Connections with one malformed frame each: after a handshake where the token is known, else before it."""
    chance, met, open_ones = random.Random(seed), Counter[str](), deque[socket.socket]()
    for _ in range(count):
        try:
            if token is None:
                sock = connect(to)
                sock.sendall(noise(chance))
                sock.shutdown(socket.SHUT_WR)  # half a handshake is not waited for
            else:
                sock = dial(to, token, 30.0).detach()
                sock.setblocking(True)
                sock.sendall(malform(chance))
        except (OSError, DialFailed) as error:
            met[type(error).__name__] += 1
            continue
        open_ones.append(sock)
        if len(open_ones) >= AT_A_TIME:
            met[hung_up(open_ones.popleft())] += 1
    while open_ones:
        met[hung_up(open_ones.popleft())] += 1
    return met


def crowd(to: Address, count: int, seconds: float) -> Counter[str]:
    """Connections at once, of which every second one begins a handshake; kept, and then looked at."""
    met, held = Counter[str](), []
    until = time.monotonic() + seconds
    for at in range(count):
        try:
            sock = connect(to)
            held.append(sock)
            if at % 2:
                sock.sendall(HELLO[:20])
        except OSError as error:
            met[type(error).__name__] += 1
    met["held"] = len(held)
    time.sleep(max(0.0, until - time.monotonic()))
    for sock in held:
        met[hung_up(sock)] += 1
    return met


def trickle(to: Address, count: int, seconds: float) -> Counter[str]:
    """Connections that send a byte of a handshake now and then; one that is turned away comes again."""
    met, held = Counter[str](), dict[int, tuple[socket.socket, int]]()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for at in range(count):
            try:
                sock, sent = held.get(at) or (connect(to), 0)
                sock.setblocking(False)
                sock.send(HELLO[sent : sent + 1])
                held[at] = (sock, sent + 1)
                with contextlib.suppress(BlockingIOError):
                    if not sock.recv(100):
                        raise ConnectionResetError
            except OSError as error:
                met[type(error).__name__] += 1
                if (known := held.pop(at, None)) is not None:
                    known[0].close()
        time.sleep(0.2)
    for sock, _ in held.values():
        sock.close()
    return met


def main() -> None:
    options: dict[str, Any] = json.loads(sys.stdin.readline())
    to = (options["host"], options["port"])
    token = bytes.fromhex(options["token"]) if options.get("token") else None
    begun = time.monotonic()
    if options["kind"] == "frames":
        met = frames(to, options["count"], token, options["seed"])
    elif options["kind"] == "crowd":
        met = crowd(to, options["count"], options["seconds"])
    else:
        met = trickle(to, options["count"], options["seconds"])
    print(json.dumps({"met": met, "seconds": round(time.monotonic() - begun, 1)}), flush=True)
    os._exit(0)  # thousands of sockets go at once


if __name__ == "__main__":
    main()
