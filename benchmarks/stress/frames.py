"""A million malformed frames, as a link, the decoder of messages and that of frames meet them: each is refused, or is read
as a whole one."""

from __future__ import annotations

import functools
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil

from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId, decode, encode_batch, encode_grant, encode_marker
from tailrace.elements.markers import Barrier, Watermark
from tailrace.errors import ProtocolViolation
from tailrace.protocol import message_codec
from tailrace.protocol.deployment import Deploy, Failed, FailureKind, Hello, PeerHello, Progress, SubtaskReport
from tailrace.runtime.network.link import CONTROL, FRAME, Link, LinkError

from . import Setting

CHANNEL = ChannelId(1, 0, 1)


def change(data: bytes, chance: random.Random) -> bytes:
    """A frame with some of its bytes changed, cut off, doubled, or in front of noise."""
    body = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(body)) if body else 0
        kind = chance.randrange(4)
        if kind == 0 and body:
            body[at] = chance.randrange(256)
        elif kind == 1:
            del body[at:]
        elif kind == 2:
            body[at:at] = body[at : at + chance.randrange(1, 40)]
        else:
            body += chance.randbytes(chance.randrange(1, 40))
    return bytes(body)


def messages() -> list[bytes]:
    reports = [SubtaskReport(vertex, 0, records_in=1 << 40, metrics={"a": 1.0}) for vertex in range(3)]
    messages_ = [Hello(0, "127.0.0.1", 1, 1, "job", 1), PeerHello(0, 1, 1, "job"), Progress(reports, 5, {"TIMEOUT": 3})]
    return [
        message_codec.encode(one) for one in [*messages_, Deploy(b"plan", [], 1), Failed(FailureKind.USER, "it broke")]
    ]


def frames() -> list[bytes]:
    batch = encode_batch(CHANNEL, 1, 1, 7, Rows([(1, "a"), (2, "b")], None, None))
    markers = [encode_marker(CHANNEL, 1, 1, 9, marker) for marker in (Watermark(5), Barrier(CutRequest(3)))]
    return [batch, encode_grant(CHANNEL, 1, 1, 1 << 20), *markers]


def _read_by_decoders(data: bytes) -> None:
    """The message of one of the directions that has it, if any has."""
    refusals = list[ProtocolViolation]()
    decoders = (message_codec.decode_greeting, message_codec.decode_from_worker, message_codec.decode_to_worker)
    for decode_message in decoders:
        try:
            decode_message(data)
        except ProtocolViolation as refusal:
            refusals.append(refusal)
    if len(refusals) == len(decoders):
        raise refusals[-1]


@functools.cache
def _door() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _read_by_link(data: bytes) -> None:
    """As much of it as a link takes for whole messages."""
    theirs = socket.create_connection(_door().getsockname())
    link = Link(_door().accept()[0], "somebody")
    try:
        theirs.sendall(data)
        theirs.close()
        link._sock.setblocking(True)  # all of it is on its way
        while True:
            for kind, _ in link.readable():
                if kind not in (CONTROL, FRAME):
                    raise AssertionError(f"a message of kind {kind}")
    finally:
        link.close()
        theirs.close()


def malformed(setting: Setting) -> dict[str, Any]:
    """A million in all: three parts in ten for each decoder, the rest over links."""
    count, chance = setting.option("frames", 1_000_000), random.Random(setting.option("seed", 1))
    messages_, sent = messages(), frames()
    ways: dict[str, tuple[int, list[bytes], Callable[[bytes], Any]]] = {
        "messages": (count * 9 // 20, messages_, _read_by_decoders),
        "frames": (count * 9 // 20, sent, decode),
        "links": (
            count // 10,
            [len(one).to_bytes(4, "little") + bytes([CONTROL]) + one for one in messages_],
            _read_by_link,
        ),
    }
    figures: dict[str, Any] = {"count": sum(many for many, _, _ in ways.values())}
    process, _ = psutil.Process(), _door()
    begun, memory, files = time.monotonic(), process.memory_info().rss, process.num_fds()
    for name, (many, whole, read) in ways.items():
        met = Counter[str]()
        for _ in range(many):
            data = change(chance.choice(whole), chance)
            try:
                read(data)
            except (ProtocolViolation, LinkError) as error:
                met[type(error).__name__] += 1
            except Exception as error:
                return {**figures, "wrong": f"{name}: {type(error).__name__}: {error} of {data!r}"}
            else:
                met["read"] += 1
        figures[name] = dict(met)
    grown = (process.memory_info().rss - memory) >> 20
    figures |= {"seconds": round(time.monotonic() - begun, 1), "grown_mb": grown}
    left = process.num_fds() - files
    return {**figures, "wrong": "" if grown < 32 and left <= 0 else f"left: {grown} MB, {left} files"}
