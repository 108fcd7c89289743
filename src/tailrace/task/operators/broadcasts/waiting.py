"""Broadcast records that wait for event time, in the part of a subtask in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tailrace.elements.valueclasses import Shapes
from tailrace.state.backend import MetaPart
from tailrace.state.codecs import decoder, pickle_codec


class Waiting(msgspec.Struct, array_like=True):
    """What a subtask that is called in order has beside its copies."""

    received: int = 0
    """Number of broadcast records that have come to each subtask."""
    coming: list[tuple[int, int]] = []
    """(time, number) of the broadcast records for which the function was not called."""
    values: bytes = b""
    """Pickle of these records."""
    classes: Shapes = ()
    done: list[tuple[int, int, list[int]]] = []
    """Key groups [first, last), with the numbers of records among these for which the function was called on their keys, by
    another subtask before a start at another parallelism."""
    emitted: list[int] = []
    """Numbers of records among these for which nothing is emitted outside of keys any more."""
    elsewhere: list[int] = []
    """Numbers of records among these for which some subtask has emitted that, before a start at another parallelism."""
    own: bytes | None = None
    """The operator states."""


_MARK = b"TRWB"
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Waiting)


def write_waiting(waiting: Waiting, values: list[Any]) -> bytes:
    """The bytes of what waits, with the records."""
    codec = pickle_codec()
    waiting.values = codec.encode(values)
    waiting.classes = codec.notes.listed
    return _MARK + _encoder.encode(waiting)


def waiting_of(part: MetaPart) -> Waiting | None:
    """What waits in a part; None in one of an operator that is not called in order."""
    if part.data is None or not part.data.startswith(_MARK):
        return None
    return _decoder.decode(part.data[len(_MARK) :])


def values_of(waiting: Waiting, name: str) -> list[Any]:
    """The records that wait."""
    found: list[Any] = decoder("pickle", "value", object, name, waiting.classes)(waiting.values)
    return found


def with_own(data: bytes | None, change: Callable[[bytes | None, bool], bytes | None]) -> bytes | None:
    """What a subtask saved, with other operator states. `change` makes them of its own, and of True if it is called in
    order, so that each subtask saves its copies."""
    if data is None or not data.startswith(_MARK):
        return change(data, False)
    waiting = _decoder.decode(data[len(_MARK) :])
    waiting.own = change(waiting.own, True)
    return _MARK + _encoder.encode(waiting)


def without_waiting(part: MetaPart) -> MetaPart:
    """A part with its operator states alone."""
    waiting = waiting_of(part)
    if waiting is None:
        return part
    return MetaPart(part.subtask, part.parallelism, part.finished, waiting.own, part.schema, part.sides)
