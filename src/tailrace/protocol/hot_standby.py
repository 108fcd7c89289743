"""The messages by which a hot standby does what the worker of a slice does, a little behind it.

worker of the slice                coordinator                        standby
                             <-    Feed(peer, checkpoint)             which the standby holds (`standby`)
   Feeds(place, checkpoint)  ->
                                   Follow(slot, resume)         ->
   <- the link of the standby, over which goes what has come to the worker since the checkpoint, and its history ->
                                                                <-    NotFollowed(slot, reason)     if it gives up

The standby restores the checkpoint and replays the history as it grows, as a replacement does (`replay`), without any
effect: what its tasks send stays in their logs, and sinks write nothing. When the worker is lost, the standby takes the
slot, and has only the rest to replay (`Resume.hot`, `Gained.has`). No worker depends on a hot standby: where one gives up,
it is a standby like any other one.
"""

from __future__ import annotations

import msgspec

from tailrace.protocol.deployment import Peer
from tailrace.protocol.message import Message
from tailrace.protocol.replay import CameValues, Gained, Resume


class Feed(Message, frozen=True):
    """A command to a worker: let a standby call, and send it all that has come since this checkpoint, and what comes, with
    the history of the slice."""

    peer: Peer
    """The standby; its slot is its place."""
    checkpoint: int


class Feeds(Message, frozen=True):
    """A report of a worker: the standby in this place may call. Not `possible`: the worker lacks a part of what came since
    the checkpoint, or it has lost the standby, or what the standby has not read has grown too much."""

    place: int
    checkpoint: int
    possible: bool = True
    reason: str = ""


class Follow(Message, frozen=True):
    """A command to a standby: do what the worker of this slice does, from the checkpoint on, without any effect. `resume`
    has the worker as its only peer, and the history as far as the coordinator has it."""

    slot: int
    resume: Resume


class NotFollowed(Message, frozen=True):
    """A report of a standby: it has given up to follow the worker of this slice."""

    slot: int
    reason: str


class Followed(msgspec.Struct, frozen=True):
    """A report of a worker to its hot standby, in a frame: the new entries of its history, and the hash of all values that
    it has sealed on channels to other workers."""

    gained: Gained
    values: list[CameValues] = []
