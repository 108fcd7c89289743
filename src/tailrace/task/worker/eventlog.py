"""The log of a worker's events as bytes: msgpack, with the user's objects pickled. Another worker that handles these
events returns equal actions (K3)."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tailrace.task.contract.actions import Action, BeginCalls, CallSink
from tailrace.task.contract.events import Event
from tailrace.task.journal.outside_answers import Answer


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """An event, and the answers of the world outside to user code during it."""

    event: Event
    answers: list[Answer] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogEntry)


def encode(entry: LogEntry) -> bytes:
    """An entry as bytes."""
    return _encoder.encode(entry)


def decode(data: bytes) -> LogEntry:
    """An entry from the bytes that `encode` made."""
    return _decoder.decode(data)


def action_bytes(action: Action) -> bytes:
    """An action as bytes: equal actions have equal bytes. Frames and messages are in them as they are sent. The records of
    calls are not: they are any objects, and in the state of their operator. Nor are sinks."""
    if isinstance(action, BeginCalls):
        action = replace(action, records=[])
    elif isinstance(action, CallSink):
        action = replace(action, sink=None)
    return _encoder.encode((type(action).__name__, action))
