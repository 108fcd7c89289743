"""All control messages as bytes: msgspec structs in msgpack, tagged by name. The coordinator never unpickles what they
carry."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tailrace.errors import ProtocolViolation
from tailrace.protocol.deployment import (
    Deploy,
    Deployed,
    EndSources,
    Failed,
    Heartbeat,
    Hello,
    Inspect,
    Inspection,
    Leave,
    NotPublished,
    OperatorEvent,
    PeerHello,
    Progress,
    Publish,
    Published,
    Settled,
    Start,
    SubtasksFinished,
    Welcome,
)
from tailrace.protocol.hot_standby import Feed, Feeds, Follow, NotFollowed
from tailrace.protocol.recovery import Reset, WasReset
from tailrace.protocol.replay import (
    Gained,
    KnownHistory,
    NotCompared,
    Replaced,
    ReplayDone,
    Restored,
    Resume,
    Severed,
    WorkerLost,
)
from tailrace.protocol.snapshot import Abort, Ack, Complete, Declined, Trigger
from tailrace.protocol.standby import Hold, StandBy, StandsBy, StateHeld, TakeSlot
from tailrace.protocol.succession import GoOn, Keep, LogKept, Received, Rejoin, Secured
from tailrace.protocol.termination import (
    Advance,
    CallFinish,
    EndLoop,
    EventTimeMoved,
    Quiet,
    Release,
    RoundReport,
    StartRound,
    StartWave,
    StopRounds,
    WaveReport,
)

Greeting = Hello | Heartbeat | PeerHello | Rejoin
"""The first messages on a link: they name the sender."""

HeartMessage = Heartbeat | Inspection
"""Messages of the thread that gives a worker's signs of life."""

NestReport = Quiet | EventTimeMoved | WaveReport | RoundReport
"""Messages of a worker about a loop nest."""

FollowReport = Feeds | NotFollowed
"""Messages about a standby that follows a worker."""

StandbyReport = StandsBy | StateHeld
"""Messages that only a standby sends."""

SuccessionReport = LogKept | Received
SuccessionCommand = Keep | Secured | GoOn
"""Messages about the log of a coordinator. They belong to no attempt, and neither end counts them."""

FromWorker = (
    Deployed
    | Progress
    | SubtasksFinished
    | Published
    | NotPublished
    | Failed
    | OperatorEvent
    | Ack
    | Declined
    | WasReset
    | NestReport
    | Gained
    | NotCompared
    | Severed
    | KnownHistory
    | Restored
    | ReplayDone
    | FollowReport
    | StandbyReport
    | SuccessionReport
)
"""Messages of a worker to the coordinator that has welcomed it."""

Outgoing = FromWorker | Rejoin
"""Messages of a worker to its coordinator, or to another one that it looks for."""

NestCommand = StartWave | Release | Advance | CallFinish | EndLoop | StartRound | StopRounds
"""Messages of the coordinator to the tasks of a loop nest."""

StandbyCommand = StandBy | Hold | TakeSlot | Follow
"""Messages that only a standby receives."""

AttemptCommand = Trigger | Abort | Complete | WorkerLost | Replaced | Feed
"""Messages to a worker that concern its attempt in whatever phase it is."""

TaskMessage = Trigger | Abort | Complete | OperatorEvent | EndSources | NestCommand
"""Messages to a worker that concern its tasks. A worker that may be replaced numbers them and records them in its
history."""

ToWorker = (
    TaskMessage
    | Welcome
    | Deploy
    | Start
    | Publish
    | Settled
    | Leave
    | Reset
    | WorkerLost
    | Resume
    | Replaced
    | Feed
    | StandbyCommand
    | SuccessionCommand
)
"""Messages of the coordinator to a worker."""

AnyMessage = Greeting | FromWorker | ToWorker | HeartMessage | Inspect
Kind = TypeVar("Kind")

_encoder = msgspec.msgpack.Encoder()
_greetings: msgspec.msgpack.Decoder[Greeting] = msgspec.msgpack.Decoder(Greeting)
_from_heart: msgspec.msgpack.Decoder[HeartMessage] = msgspec.msgpack.Decoder(HeartMessage)
_to_heart: msgspec.msgpack.Decoder[Inspect] = msgspec.msgpack.Decoder(Inspect)
_from_worker: msgspec.msgpack.Decoder[FromWorker | Hello] = msgspec.msgpack.Decoder(FromWorker | Hello)
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


def encode(message: AnyMessage) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


class Speech:
    """An encoder for one process that sends a message to many links. It encodes the message once, and all links on which
    the message waits share the bytes. The plan of a job is in such a message."""

    def __init__(self) -> None:
        self._message: AnyMessage | None = None
        self._data = b""
        """The newest message, as bytes."""

    def encode(self, message: AnyMessage) -> bytes:
        """A message as bytes."""
        if message is not self._message:
            self._message, self._data = message, encode(message)
        return self._data


def decode_greeting(data: bytes) -> Greeting:
    """The first message on a link, from bytes. Raises `ProtocolViolation` for any other bytes, as do all of these
    functions."""
    return _decode(_greetings, data)


def decode_from_heart(data: bytes) -> HeartMessage:
    """A message to the coordinator on the link of a worker's signs of life."""
    return _decode(_from_heart, data)


def decode_to_heart(data: bytes) -> Inspect:
    """A message of the coordinator on the link of a worker's signs of life."""
    return _decode(_to_heart, data)


def decode_from_worker(data: bytes) -> FromWorker | Hello:
    """A message to the coordinator on the link of a worker. A standby that takes a slot sends its `Hello` once more."""
    return _decode(_from_worker, data)


def decode_to_worker(data: bytes) -> ToWorker:
    """A message of the coordinator to a worker."""
    return _decode(_to_worker, data)


def _decode(decoder: msgspec.msgpack.Decoder[Kind], data: bytes) -> Kind:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"not a control message that may come here: {error}") from error
