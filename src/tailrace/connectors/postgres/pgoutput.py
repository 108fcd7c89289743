"""Messages of logical replication: what the plugin `pgoutput` sends, in version 1 of its protocol.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

UNCHANGED = object()
"""A value that the server has not sent: it is large, and the update did not change it."""
Values = list[object]
"""The values of a row: bytes, in the text form of their type; None; or `UNCHANGED`."""


class BeginMessage(NamedTuple):
    """The beginning of a transaction; its changes follow."""

    commit: int
    """The place of its commit in the log of the server."""
    time: int
    """The time of its commit, in microseconds since 2000."""


class CommitMessage(NamedTuple):
    """The end of a transaction."""

    end: int
    """The place in the log behind its commit."""


class Attribute(NamedTuple):
    """A column of a relation."""

    name: str
    type: int
    is_key: bool
    """True if it is a part of the replica identity."""


class RelationMessage(NamedTuple):
    """The description of a table, sent before its first change and whenever it changes."""

    oid: int
    schema: str
    name: str
    identity: str
    """The setting of its replica identity: `d` primary key, `i` an index, `f` the whole row, `n` nothing."""
    columns: tuple[Attribute, ...]


class InsertMessage(NamedTuple):
    """A row that is new."""

    relation: int
    row: Values


class UpdateMessage(NamedTuple):
    """A row that has changed. `key` are the old values of the replica identity, if they have changed or it is the whole
    row."""

    relation: int
    key: Values | None
    row: Values


class DeleteMessage(NamedTuple):
    """A row that is gone: its replica identity."""

    relation: int
    key: Values


class TruncateMessage(NamedTuple):
    """Tables all of whose rows are gone."""

    relations: Sequence[int]


Message = (
    BeginMessage | CommitMessage | RelationMessage | InsertMessage | UpdateMessage | DeleteMessage | TruncateMessage
)


def read_message(data: bytes) -> Message | None:
    """A message from its bytes; None for one that is of no interest (types, origins). Raises `ValueError` for a message that
    is not known."""
    kind = data[:1]
    if kind == b"I":
        return InsertMessage(_int(data, 1), _tuple(data, 6)[0])
    if kind == b"U":
        key, at = None, 5
        if data[5:6] in (b"K", b"O"):
            key, at = _tuple(data, 6)
        return UpdateMessage(_int(data, 1), key, _tuple(data, at + 1)[0])
    if kind == b"D":
        return DeleteMessage(_int(data, 1), _tuple(data, 6)[0])
    if kind == b"B":
        commit, time = struct.unpack_from(">Qq", data, 1)
        return BeginMessage(commit, time)
    if kind == b"C":
        return CommitMessage(struct.unpack_from(">Q", data, 10)[0])
    if kind == b"R":
        return _relation(data)
    if kind == b"T":
        return TruncateMessage(struct.unpack_from(f">{_int(data, 1)}I", data, 6))
    if kind in (b"Y", b"O", b"M"):
        return None
    raise ValueError(f"the server has sent a message of replication that nobody knows: {data[:20]!r}")


def _int(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _relation(data: bytes) -> RelationMessage:
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity, count = struct.unpack_from(">cH", data, at)
    columns, at = [], at + 3
    for _ in range(count):
        column, end = _text(data, at + 1)
        columns.append(Attribute(column, _int(data, end), bool(data[at] & 1)))
        at = end + 8
    return RelationMessage(_int(data, 1), schema, name, identity.decode(), tuple(columns))


def _tuple(data: bytes, at: int) -> tuple[Values, int]:
    """The values of a row, and the place behind them."""
    values: Values = []
    count, at = int.from_bytes(data[at : at + 2], "big"), at + 2
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 0x74:  # t
            length = _int(data, at)
            values.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        elif kind == 0x6E:  # n
            values.append(None)
        elif kind == 0x75:  # u
            values.append(UNCHANGED)
        else:
            raise ValueError(f"the server has sent a value in a form that was not requested: {chr(kind)!r}")
    return values, at
